"""Workers in processes of their own: as one process, killed, stuck, late, or started otherwise."""

import importlib.metadata
import json
import re
import socket

from replicator import train
from replicator.app import config
from replicator.training.checkpoints.store import steps_of
from tests.programs import fragile
from tests.programs.forks import in_a_fork
from tests.programs.logs import rows
from tests.programs.processes import SECONDS, free_addresses
from tests.programs.workers import ended, has_logged, running

import pytest

FOREVER = ["train.steps = 10000000", "train.global_batch_size = 6"]


@pytest.mark.slow
@in_a_fork
def test_a_chief_and_a_worker_train_as_one_process_does(tmp_path):
  settings = ["train.steps = 4", "train.global_batch_size = 4", "train.log_every = 1",
              "train.eval_every = 0"]
  # No process takes the place of the evaluator, and the others do not wait for one.
  with running(tmp_path / "two", settings, settings, None,
               kinds=("chief", "worker", "evaluator")) as processes:
    for process in processes:
      assert ended(process, 0) == []
  config.parse([], settings)
  train(fragile.Fragile, fragile.numbers, workdir=str(tmp_path / "one"))
  expected, found = rows(tmp_path / "one"), rows(tmp_path / "two")
  assert [row["x"] for row in expected] == [1.5, 5.5, 9.5, 13.5]  # Each example counts once.
  assert [row["step"] for row in found] == [1, 2, 3, 4]  # One process writes the log.
  assert [row["x"] for row in found] == pytest.approx([row["x"] for row in expected], rel=1e-5)
  facts = json.loads((tmp_path / "two" / "run.json").read_text())
  assert (facts["num_workers"], facts["num_replicas"]) == (2, 2)


@pytest.mark.slow
@in_a_fork
@pytest.mark.parametrize("more", [[], ["wrap_optimizer.ema_decay = 0.5",
                                       "wrap_optimizer.clip_norm = 0.1"]])
def test_the_first_step_with_sharded_state_is_compared_with_one_device(more, tmp_path):
  settings = ["train.steps = 2", "train.global_batch_size = 4", "wrap_optimizer.sharded = True"]
  with running(tmp_path, *[[*settings, *more]] * 2) as processes:
    for process in processes:
      assert ended(process, 0) == []
  assert "first step: same as on one device" in (tmp_path / "log.txt").read_text()


@pytest.mark.slow
@in_a_fork
def test_what_a_callback_of_the_chief_stops_ends_on_all_workers_at_that_step(tmp_path):
  settings = ["train.steps = 40", "train.global_batch_size = 4", "train.checkpoint_every = 40",
              "train.eval_every = 2", "train.callbacks = [@EarlyStopping()]",
              "EarlyStopping.metric = 'eval/constant'", "EarlyStopping.patience = 2"]
  with running(tmp_path, settings, settings) as processes:
    for process in processes:
      assert ended(process, 0) == []
  assert rows(tmp_path)[-1]["step"] == 4 and steps_of(tmp_path / "checkpoints") == [4]


@pytest.mark.slow
@in_a_fork
def test_a_callback_that_changes_weights_does_so_on_all_workers_or_is_named(tmp_path):
  settings = ["train.steps = 4", "train.global_batch_size = 4", "train.callbacks = [@Halving()]"]
  with running(tmp_path / "chief", settings, settings) as processes:
    for process in processes:
      assert "Halving at step 1 assigned the variable 'weights'" in ended(process, 2)[-1]
  settings += ["Halving.on_all_workers = True"]
  with running(tmp_path / "all", settings, settings) as processes:
    for process in processes:
      assert ended(process, 0) == []


@pytest.mark.slow
@in_a_fork
def test_the_chief_alone_cannot_read_a_metric_of_the_step(tmp_path):
  settings = ["train.steps = 2", "train.global_batch_size = 4"]
  evaluates, calls = "train.eval_every = 2", "train.callbacks = [@Reading()]"
  for name, more, owner in (("evaluate", evaluates, ""),
                            ("callback", calls, "Reading.after_steps at step 1: ")):
    with running(tmp_path / name, *[[*settings, more]] * 2,
                 command=("tests.programs.measured",)) as (chief, _):
      line = ended(chief, 2)[-1]
    assert re.match(f"error: {owner}the variable 'mean[_0-9]*/(total|count)' has a part on each "
                    "replica, but only the chief reads it; give evaluate, ", line)
  for own in ("Evaluate.on_all_workers = True", "Evaluate.owns = True"):
    with running(tmp_path / own, *[[*settings, evaluates, own]] * 2,
                 command=("tests.programs.measured",)) as processes:
      for process in processes:
        assert ended(process, 0) == []
    assert [row["eval/mean"] for row in rows(tmp_path / own) if "eval/mean" in row] == [3.0, 3.0]


@pytest.mark.slow
@in_a_fork
def test_all_workers_must_call_callbacks_at_the_same_steps(tmp_path):
  profiled = ["train.steps = 4", "train.global_batch_size = 4", "train.callbacks = [@Profile()]",
              "Profile.first = 2", "Profile.last = 3"]
  with running(tmp_path, profiled, profiled) as processes:
    for process in processes:
      assert ended(process, 0) == []
  assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1  # Of the chief.

  unequal = ["train.steps = 4", "train.global_batch_size = 4", "train.callbacks = [@OwnSteps()]"]
  with running(tmp_path / "unequal", unequal, unequal) as processes:
    for process in processes:
      assert ended(process, 2)[-1].startswith("error: OwnSteps.every and at: ")


@pytest.mark.slow
@pytest.mark.parametrize("is_stuck", [False, True], ids=["killed", "stuck"])
@in_a_fork
def test_a_worker_that_is_killed_or_stuck_is_named_by_all_others(tmp_path, is_stuck):
  addresses = free_addresses(3)
  settings = [*FOREVER, *["Replicator.stuck_timeout = 10.0"] * is_stuck]
  program = "tests.programs.stuck" if is_stuck else "tests.programs.fragile"
  with running(tmp_path, *[settings] * 3, addresses=addresses,
               command=[program]) as (first, second, third):
    if not is_stuck:
      has_logged(tmp_path, 5)
      second.kill()
    for other in (first, third):
      assert ended(other, 1) == [
          f"error: worker 1 ({addresses[1]}) is not responding; restart all processes to "
          "resume from the last checkpoint"]
    assert not is_stuck or second.poll() is None


@pytest.mark.slow
@in_a_fork
def test_a_worker_that_never_comes_is_named(tmp_path):
  addresses = free_addresses(2)
  settings = [*FOREVER, "Replicator.join_timeout = 2.0"]
  for present in (0, 1):
    of_each = [settings if index == present else None for index in range(2)]
    with running(tmp_path, *of_each, addresses=addresses) as (only,):
      absent = f"worker {1 - present} ({addresses[1 - present]})"
      assert ended(only, 1) == [
          f"error: {absent} did not start within 2 seconds; start all processes of the run "
          "together, or increase Replicator.join_timeout"]


@pytest.mark.slow
@in_a_fork
def test_a_number_that_is_given_twice_is_named_by_all_at_once(tmp_path):
  addresses = free_addresses(2)
  with (running(tmp_path, FOREVER, None, addresses=addresses) as (first,),
        running(tmp_path, FOREVER, None, addresses=addresses) as (second,)):
    for process in (first, second):
      (said,) = ended(process, 1)
      assert said.startswith(f"error: worker 0 ({addresses[0]}) was started twice, as process ")


@pytest.mark.slow
@in_a_fork
def test_workers_at_addresses_of_version_6_train(tmp_path):
  settings = ["train.steps = 2", "train.global_batch_size = 2"]
  addresses = free_addresses(2, "[::1]")
  with running(tmp_path, settings, settings, addresses=addresses) as workers:
    for worker in workers:
      assert ended(worker, 0) == []


@pytest.mark.slow
@in_a_fork
def test_a_port_that_is_taken_is_named_by_all(tmp_path):
  addresses = free_addresses(2)
  settings = [*FOREVER, "Replicator.join_timeout = 5.0"]
  for index, address in enumerate(addresses):
    with (socket.create_server(("", int(address.rpartition(":")[2]))),
          running(tmp_path, settings, settings, addresses=addresses) as workers):
      taken = f"error: TF_CONFIG: worker {index} ({address}) cannot listen: the port is in use"
      (said,) = ended(workers[index], 2)
      assert said.startswith(taken)
      (said,) = ended(workers[1 - index], 1)  # Nobody but the first process could tell the others.
      assert said.startswith(
          taken if index else f"error: worker 0 ({address}) did not start within 5 seconds")


@pytest.mark.slow
@in_a_fork
def test_workers_with_other_settings_are_refused_by_all(tmp_path):
  with running(tmp_path, FOREVER, [*FOREVER, "train.seed = 7"]) as workers:
    for worker in workers:
      assert ended(worker, 2) == [
          "error: train.seed is not set on worker 0, but 7 on worker 1; start all processes with "
          "the same configuration, versions, code and data"]


@pytest.mark.slow
def test_a_worker_with_another_version_is_refused_by_all(tmp_path):
  folder = tmp_path / "other" / "gin_config-9.9.dist-info"
  folder.mkdir(parents=True)
  (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gin-config\nVersion: 9.9\n")
  with running(tmp_path, FOREVER, FOREVER, paths=[tmp_path, folder.parent]) as workers:
    for worker in workers:
      assert ended(worker, 2) == [
          f"error: gin-config is {importlib.metadata.version('gin-config')} on worker 0, but 9.9 "
          "on worker 1; start all processes with the same configuration, versions, code and data"]


@pytest.mark.slow
def test_all_warn_when_the_clock_of_one_is_wrong(tmp_path):
  (tmp_path / "late").mkdir()
  (tmp_path / "late" / "sitecustomize.py").write_text(
      "import time\nright = time.time\ntime.time = lambda: right() - 100.0\n")
  settings = ["train.steps = 2", "train.global_batch_size = 2"]
  with running(tmp_path / "run", settings, settings,
               paths=[tmp_path, tmp_path / "late"]) as workers:
    said = [worker.communicate(timeout=SECONDS)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
  for output in said:
    assert ("warning: the clocks of the workers are 100 seconds apart; synchronize them, or times "
            "in logs will be wrong") in output


@pytest.mark.slow
@in_a_fork
def test_processes_that_are_not_alike_are_warned(tmp_path):
  settings = ["train.steps = 4", "train.global_batch_size = 4"]
  with running(tmp_path, settings, settings, command=("tests.programs.unalike",)) as processes:
    output, _ = processes[0].communicate(timeout=SECONDS)
  assert "the workers have different values of the step's 'numbers'" in output
  assert "rows gives several workers the same rows" in output
