"""A worker that is killed, that never comes, or that is started in another way."""

import pytest

from replicator import launch
from tests.programs.forks import in_a_fork
from tests.programs.workers import ended, has_logged, running

FOREVER = ["train.steps = 10000000", "train.global_batch_size = 6"]


@pytest.mark.slow
@in_a_fork
def test_a_worker_that_is_killed_is_named_by_all_others(tmp_path):
  addresses = launch.tf_configs(3)[0]["cluster"]["worker"]
  with running(tmp_path, *[FOREVER] * 3, addresses=addresses) as (first, second, third):
    has_logged(tmp_path, 5)
    second.kill()
    for other in (first, third):
      assert ended(other, 1) == [
          f"error: worker 1 ({addresses[1]}) does not answer; start all processes again to "
          "resume from the last checkpoint"]


@pytest.mark.slow
@in_a_fork
def test_a_worker_that_is_stuck_is_named_by_all_others(tmp_path):
  addresses = launch.tf_configs(3)[0]["cluster"]["worker"]
  settings = [*FOREVER, "Replicator.stuck_timeout = 10.0"]
  with running(tmp_path, *[settings] * 3, addresses=addresses,
               command=["tests.programs.stuck"]) as (first, second, third):
    for other in (first, third):
      assert ended(other, 1) == [
          f"error: worker 1 ({addresses[1]}) does not answer; start all processes again to "
          "resume from the last checkpoint"]
    assert second.poll() is None


@pytest.mark.slow
@in_a_fork
def test_a_worker_that_never_comes_is_named(tmp_path):
  addresses = launch.tf_configs(2)[0]["cluster"]["worker"]
  settings = [*FOREVER, "Replicator.join_timeout = 2.0"]
  for present in (0, 1):
    of_each = [settings if index == present else None for index in range(2)]
    with running(tmp_path, *of_each, addresses=addresses) as (only,):
      absent = f"worker {1 - present} ({addresses[1 - present]})"
      assert ended(only, 1) == [
          f"error: {absent} did not start within 2 seconds; start all processes of the run "
          "together, or set Replicator.join_timeout to more seconds"]


@pytest.mark.slow
@in_a_fork
def test_workers_with_other_settings_are_refused_by_all(tmp_path):
  with running(tmp_path, FOREVER, [*FOREVER, "train.seed = 7"]) as workers:
    for worker in workers:
      assert ended(worker, 2) == [
          "error: train.seed is not set on worker 0, and 7 on worker 1; start all processes with "
          "the same configuration and versions"]
