"""The doctor's prediction of efficiency: the model against closed forms, and the command."""

import itertools
import pathlib
import re
import types

import gin
import pytest

import replicator
from replicator import UsageError
from replicator.doctor import __main__ as doctor
from replicator.doctor.scaling import command, cost, model
from replicator.doctor.scaling.model import NETWORKS, REPLICAS, Network, Prediction
from replicator.step.context import Transfer
from tests.programs import planted_bugs

GRADIENTS = 4 * 768  # Bytes: 21 gradients, padded as in `optimizers/flat_variables.py`.
SMALL = ["train.global_batch_size = 8", "Regression.accumulates = False"]


@pytest.fixture
def restored(set_precision):
  yield
  gin.clear_config()


def seconds(move: str, size: float, replicas: int, **network) -> float:
  return model.transfer_seconds(Transfer(move, size), replicas, Network(**network))


# ---- The model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("move", "hops", "sent"), [
    ("all_reduce", 6, 1.5), ("all_gather", 3, 3.0), ("all_to_all", 3, 0.75)])
def test_a_ring_of_four(move, hops, sent):
  ring = {"bandwidth": 100.0, "latency": 0.5, "shape": "ring"}
  assert seconds(move, 800.0, 4, **ring) == pytest.approx(hops * 0.5 + sent * 8.0, rel=1e-15)


def test_one_replica_sends_nothing():
  assert {model.transfer_seconds(Transfer(move, 1e6), 1, network)
          for move in ("all_reduce", "all_gather", "all_to_all")
          for network in NETWORKS.values()} == {0.0}


def test_a_small_sum_runs_over_trees_and_a_large_one_around_the_ring():
  on = {"bandwidth": 1e9, "latency": 1e-6, "shape": "tree"}
  assert seconds("all_reduce", 0.0, 512, **on) == pytest.approx(18e-6)      # 2 log2 512
  assert seconds("all_reduce", 0.0, 5, **on) == pytest.approx(6e-6)         # 2 ceil(log2 5)
  assert seconds("all_reduce", 1e9, 4, **on) == pytest.approx(6e-6 + 1.5)   # 2 (4 - 1) / 4
  assert seconds("all_gather", 0.0, 512, **on) == pytest.approx(511e-6)  # NCCL's gathers are rings.


def test_a_collective_is_launched_once_whatever_it_sends():
  for n in (2, 512):
    assert seconds("all_gather", None, n, bandwidth=1.0, latency=0.0, launch=2e-5) == 2e-5


def test_hops_on_a_torus_run_along_its_axes():
  on = {"bandwidth": 1e9, "latency": 1e-6, "shape": "torus"}
  assert seconds("all_reduce", 0.0, 256, **on) == pytest.approx(2 * 2 * 15e-6)


def test_the_efficiency_of_weak_and_strong_scaling():
  ring = Network(bandwidth=1.0, latency=0.0, shape="ring")
  sends = [Transfer("all_reduce", 0.5), Transfer("all_reduce", 0.5)]  # 1.5 s on 4 replicas.
  assert Prediction(4.5, sends, False, [1, 4]).efficiencies(ring) == [1.0, pytest.approx(0.75)]
  assert Prediction(6.0, sends, True, [4]).efficiencies(ring) == [pytest.approx(1.5 / 3.0)]
  assert Prediction(4.5, []).efficiencies(ring) == [1.0] * 9


# ---- What is measured ---------------------------------------------------------------------------


def test_a_step_that_sends_nothing_is_refused(restored):
  def main(workdir):
    replicator.train(lambda: lambda batch: {"x": batch["x"][0, 0]}, planted_bugs.Points(),
                     workdir=workdir)
  alone = cost.of_one_replica(main, [], SMALL, calls=1)
  assert (alone.batch_size, alone.transfers) == (8, [])
  with pytest.raises(UsageError, match=r"makes no collective.* replicator\.wrap_optimizer"):
    cost.of_two_replicas(main, [], SMALL, alone.batch_size)
  with pytest.raises(UsageError, match=r"did not call replicator\.train"):
    cost.of_one_replica(lambda workdir: None, [], SMALL, calls=0)


# ---- The command --------------------------------------------------------------------------------


BAD_WORDS = [
    (["--network=10gb"], "Did you mean '10gbe'? Write one of: pcie, nvlink, infiniband, 10gbe"),
    (["--bandwidth=-1", "--latency=1"], "--bandwidth=-1: write bytes a second, such as 12.5e9"),
    (["--bandwidth=1e9", "--latency=nan"], "--latency=nan: write seconds"),
    (["--bandwidth=1e9"], "--bandwidth: write both --bandwidth and --latency, or add --network"),
    (["--step_seconds=0"], "--step_seconds=0: write seconds, such as 0.1"),
    (["--plot=x.jpg"], "--plot=x.jpg: write a file that ends with .png, in a folder that exists"),
    (["--check_resume"], "not allowed with"),
]


def test_a_bad_command_line_is_one_line(capsys):
  for words, message in BAD_WORDS:
    assert doctor.main(["--experiment=x", "--scaling", *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and message in output.err
  assert doctor.main(["--experiment=x", "--network=pcie"]) == 2
  assert "--network: works only with --scaling" in capsys.readouterr().err


def test_the_flags_describe_a_network():
  for words, network in [
      (["--network=ici"], {"ici": NETWORKS["ici"]}),
      (["--network=ici", "--latency=2e-6"], {"ici": Network(2e11, 2e-6, shape="torus")}),
      (["--bandwidth=2e9", "--latency=1e-5"], {"given": Network(2e9, 1e-5, shape="tree")}),
      ([], NETWORKS)]:
    assert command.networks(doctor._parse(["--experiment=x", "--scaling", *words])) == network


def test_the_command_measures_prints_and_draws(restored, monkeypatch, tmp_path, capsys):
  measured = []
  of_two_replicas = cost.of_two_replicas
  monkeypatch.setattr(command, "load", lambda experiment: planted_bugs.main)
  monkeypatch.setattr(cost, "of_two_replicas",
                      lambda *given: measured.append(of_two_replicas(*given)) or measured[0])
  monkeypatch.setattr(cost, "time", types.SimpleNamespace(  # A call takes 10 ms.
      perf_counter=itertools.count(0, 0.01).__next__, process_time=itertools.count().__next__))
  words = ["--experiment=x", "--scaling", "--steps=1", "--bandwidth=1e6", "--latency=1e-4",
           *(f"--gin_param={param}" for param in (*SMALL, "train.steps_per_call = 5")),
           f"--plot={tmp_path / 'x.png'}"]
  assert doctor.main(words) == 0
  title, computes, sends, _, head, *rows, drawn = capsys.readouterr().out.splitlines()
  assert title == "x: 8 examples on every replica (weak scaling; --strong divides them)"
  assert computes == "  one replica computes for 2 ms a step, measured here"  # One of its 5 steps.
  assert sends == "  each replica takes part in 1 collective: 1 all_reduce (0.003072 MB)"
  assert measured[0].batch_size == 16  # Each replica keeps its batch.
  assert head.split() == ["replicas", "given"]
  assert [int(row.split()[0]) for row in rows] == list(REPLICAS)
  two = 2e-3 / (2e-3 + 2 * 1e-4 + GRADIENTS / 1e6)
  assert rows[0].split()[1:] == [f"{100 * two:.1f}", "%"]
  assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG") and drawn.endswith("x.png")


@pytest.mark.parametrize("words, calls, seconds, source, begin, most", [
    ([], 10, 0.25, "measured here", "8 examples on every replica (weak scaling; ", 512),
    (["--steps=4", "--strong"], 4, 0.25, "measured here",
     "8 examples over all replicas (strong scaling)", 8),
    (["--step_seconds=0.5"], 0, 0.5, "as --step_seconds says", "8 examples on every replica", 512)])
def test_the_step_is_timed_unless_its_seconds_are_given(
    words, calls, seconds, source, begin, most, restored, monkeypatch, capsys):
  seen = []
  monkeypatch.setattr(command, "load", lambda experiment: None)
  monkeypatch.setattr(cost, "of_one_replica",
                      lambda *given: seen.append(given) or cost.StepCost(8, [], 0.25))
  sends = [Transfer("all_reduce", 4_000_000), Transfer("all_gather", None)]
  monkeypatch.setattr(cost, "of_two_replicas",
                      lambda *given: seen.append(given) or cost.StepCost(16, sends))
  assert doctor.main(["--experiment=x", "--scaling", "--precision=float32", *words]) == 0
  precision = ["train.precision = 'float32'"]
  assert seen == [(None, [], precision, calls), (None, [], precision, 8)]
  title, computes, moves, *_, last = capsys.readouterr().out.splitlines()
  assert title.startswith(f"x: {begin}")
  assert last.split()[0] == str(most)  # At least one example for each replica.
  assert computes.endswith(f"computes for {1000 * seconds:g} ms a step, {source}")
  assert moves.endswith("2 collectives: 1 all_reduce (4 MB), 1 all_gather (0 MB and 1 whose size "
                        "varies, taken as 0)")


def test_the_page_has_the_numbers_of_the_networks():
  page = (pathlib.Path(__file__).parents[3] / "docs" / "guide" / "scaling.md").read_text()
  rows = re.findall(r"^\| `(\w+)` \| ([\d.e]+) \| ([\d.]+) \|", page, re.MULTILINE)
  assert {name: (float(bandwidth), float(microseconds)) for name, bandwidth, microseconds in rows
          } == {name: (network.bandwidth, pytest.approx(1e6 * network.latency))
                for name, network in NETWORKS.items()}
