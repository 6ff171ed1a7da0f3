"""The doctor's prediction of efficiency: the model against closed forms, and the command."""

import itertools
import re
import types

import replicator
from replicator import UsageError
from replicator.doctor import __main__ as doctor
from replicator.doctor import scaling
from replicator.step.hooks import Transfer
from replicator.tools.scaling import cost, model
from replicator.tools.scaling.model import NETWORKS, REPLICAS, Network
from tests.programs import planted_bugs
from tests.programs.processes import ROOT

import gin
import pytest

GRADIENTS = 4 * 768  # Bytes: 21 gradients, padded as in `optimizers/flat_variables.py`.
SMALL = ["train.global_batch_size = 8", "Regression.accumulates = False"]


def seconds(move: str, size: float | None, replicas: int, **network) -> float:
  return model.transfer_seconds(Transfer(move, size), replicas, Network(**network))


@pytest.mark.parametrize(("move", "hops", "sent"), [
    ("all_reduce", 6, 1.5), ("all_gather", 3, 3.0), ("reduce_scatter", 3, 0.75),
    ("all_to_all", 3, 0.75)])
def test_a_ring_of_four_is_launched_once(move, hops, sent):
  ring = {"bandwidth": 100.0, "latency": 0.5, "launch": 0.25, "shape": "ring"}
  assert seconds(move, 800.0, 4, **ring) == pytest.approx(0.25 + hops * 0.5 + sent * 8, rel=1e-15)
  assert seconds(move, None, 4, **ring) == 0.25 + hops * 0.5


def test_a_small_sum_runs_over_trees_and_a_large_one_around_the_ring():
  on = {"bandwidth": 1e9, "latency": 1e-6, "shape": "tree"}
  assert seconds("all_reduce", 0.0, 512, **on) == pytest.approx(18e-6)      # 2 log2 512
  assert seconds("all_reduce", 0.0, 5, **on) == pytest.approx(6e-6)         # 2 ceil(log2 5)
  assert seconds("all_reduce", 1e9, 4, **on) == pytest.approx(6e-6 + 1.5)   # 2 (4 - 1) / 4
  assert seconds("all_gather", 0.0, 512, **on) == pytest.approx(511e-6)  # NCCL's gathers are rings.


def test_a_part_is_smaller_on_more_replicas():
  network = Network(bandwidth=1.0, latency=0.0, shape="ring")
  for replicas in (2, 4, 8):  # As much as the scatter before it sends.
    assert model.transfer_seconds(Transfer("all_gather", 800, parts=2), replicas, network) == (
        model.transfer_seconds(Transfer("reduce_scatter", 1600), replicas, network))


def test_hops_on_a_torus_run_along_its_axes():
  on = {"bandwidth": 1e9, "latency": 1e-6, "shape": "torus"}
  assert seconds("all_reduce", 0.0, 256, **on) == pytest.approx(2 * 2 * 15e-6)


def test_a_divided_state_is_seen_in_the_collectives_of_the_step():
  params = [*SMALL, "wrap_optimizer.sharded = True", "wrap_optimizer.ema_decay = 0.5"]
  found = scaling.measure(planted_bugs.main, [], params, calls=0)
  assert [(each.move, each.parts) for each in found.transfers] == [
      ("reduce_scatter", None), ("all_reduce", None), ("all_gather", 2)]
  scatter, _, gather = found.transfers
  assert scatter.bytes == 2 * gather.bytes and found.state >= found.weights
  assert "and 1/N of " in model.kept(found.weights, found.state, found.transfers)


def test_the_collectives_of_buckets_are_seen():
  params = [*SMALL, "wrap_optimizer.bucket_mb = 1e-6"]
  found = scaling.measure(planted_bugs.main, [], params, calls=0)
  assert len(found.transfers) > 2
  assert sum(each.bytes for each in found.transfers) == GRADIENTS


def test_the_table_of_weak_and_strong_scaling():
  rings = {"ring": Network(bandwidth=1.0, latency=0.0, shape="ring")}
  sends = [Transfer("all_reduce", 0.5), Transfer("all_reduce", 0.5)]  # 1 and 1.5 s.
  weak = model.table(4.5, sends, rings)
  assert [line.split()[0] for line in weak] == ["replicas", *map(str, REPLICAS)]
  assert [line.split()[1] for line in weak[:3]] == ["ring", "81.8", "75.0"]
  assert [line.split() for line in model.table(6.0, sends, rings, 5, strong=True)[1:]] == [
      ["2", "75.0", "%"], ["4", "50.0", "%"]]


def test_a_step_that_sends_nothing_is_refused():
  def main(workdir):
    replicator.train(lambda: lambda batch: {"x": batch["x"][0, 0]}, planted_bugs.Points(),
                     workdir=workdir)
  with pytest.raises(UsageError, match=r"calls no collective.* replicator\.wrap_optimizer"):
    scaling.measure(main, [], SMALL, calls=0)


def test_the_command_measures_and_prints(monkeypatch, capsys):
  batches = []

  def main(workdir):
    batches.append(gin.query_parameter("train.global_batch_size"))
    return planted_bugs.main(workdir)

  monkeypatch.setattr(doctor, "load", lambda experiment: main)
  monkeypatch.setattr(cost, "time", types.SimpleNamespace(  # A call takes 10 ms.
      perf_counter=itertools.count(0, 0.01).__next__))
  words = ["--experiment=x", "--scaling", "--steps=1", "--bandwidth=1e6", "--latency=1e-4",
           *(f"--gin_param={param}" for param in (*SMALL, "train.steps_per_call = 5"))]
  assert doctor.main(words) == 0
  title, computes, sends, keeps, _, head, *rows = capsys.readouterr().out.splitlines()
  assert title == "x: 8 examples on every replica (weak scaling; --strong divides them)"
  assert computes == "  one replica computes for 2 ms per step, measured here"  # One of 5 steps.
  assert sends == "  each replica takes part in 1 collective: 1 all_reduce (0.003072 MB)"
  assert re.fullmatch("  each of N replicas keeps [0-9.]+ MB of weights and gradients, and [0-9.]+ "
                      "MB of slots and averages", keeps)
  assert batches == [8, 16]  # Each replica keeps its batch.
  assert head.split() == ["replicas", "given"] and len(rows) == len(REPLICAS)
  two = 2e-3 / (2e-3 + 2 * 1e-4 + GRADIENTS / 1e6)
  assert rows[0].split() == ["2", f"{100 * two:.1f}", "%"]


@pytest.mark.parametrize("words, calls, seconds, source, begin, most", [
    (["--steps=4", "--strong"], 4, 0.25, "measured here",
     "8 examples over all replicas (strong scaling)", 8),
    (["--step_seconds=0.5"], 0, 0.5, "as --step_seconds says", "8 examples on every replica", 512)])
def test_the_step_is_timed_unless_its_seconds_are_given(
    words, calls, seconds, source, begin, most, monkeypatch, capsys):
  def measure(*given):
    assert given == (None, [], ["train.precision = 'float32'"], calls)
    sends = [Transfer("all_reduce", 4_000_000), Transfer("all_gather", None)]
    return cost.StepCost(8, sends, 0.25)

  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  monkeypatch.setattr(scaling, "measure", measure)
  assert doctor.main(["--experiment=x", "--scaling", "--precision=float32", *words]) == 0
  title, computes, moves, _, _, head, *_, last = capsys.readouterr().out.splitlines()
  assert title.startswith(f"x: {begin}")
  assert head.split() == ["replicas", *NETWORKS]
  assert last.split()[0] == str(most)  # At least one example for each replica.
  assert computes.endswith(f"computes for {1000 * seconds:g} ms per step, {source}")
  assert moves.endswith("2 collectives: 1 all_reduce (4 MB), 1 all_gather (0 MB and 1 whose size "
                        "varies, taken as 0)")


def test_the_page_has_the_numbers_of_the_networks():
  page = (ROOT / "docs" / "explain" / "scaling.md").read_text()
  rows = re.findall(r"^\| `(\w+)` \| ([\d.e]+) \| ([\d.]+) \|", page, re.MULTILINE)
  assert {name: (float(bandwidth), float(microseconds)) for name, bandwidth, microseconds in rows
          } == {name: (network.bandwidth, pytest.approx(1e6 * network.latency))
                for name, network in NETWORKS.items()}
