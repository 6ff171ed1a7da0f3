"""What a step that diverged has left, and the checkpoint from which a run went there."""

import pathlib

from replicator import atomic
from replicator.training.checkpoints import store
from replicator.training.divergence import failures
from replicator.training.divergence.failures import Failure
from tests.programs.refusals import refusal

import numpy as np
import pytest


def fail(run: pathlib.Path, step: int, rollbacks: int = 0, skipped: int = 0) -> pathlib.Path:
  folder = run / "failures" / failures.name_of(step, rollbacks)
  folder.mkdir(parents=True)
  position = (step - 1 + skipped) * 4
  failures.write_facts(folder, {
      "step": step, "message": f"step {step}: loss is nan", "offending": {"loss": "NaN"},
      "seed": 0, "rollbacks": rollbacks, "data_positions": [position, position + 4],
      "recent": {"loss": [1.0, "Infinity", "NaN"], "other": [1.0, 1.0, 1.0]}})
  return folder


def save(run: pathlib.Path, step: int, rollbacks: int = 0, due: bool = True) -> None:
  facts = {"format": store.FORMAT, "step": step, "due": due, "loop": {
      "rollbacks": rollbacks, "skipped": 0, "seconds": 1.0}}
  atomic.publish(store.folder_of(run / "checkpoints", step),
                 lambda folder: store.write_bundle(folder, {"x": np.float32(step)}), facts)


def test_the_last_failure_is_that_after_most_rollbacks(tmp_path):
  for step, rollbacks, skipped in ((9, 0, 0), (6, 1, 5), (7, 1, 5)):
    fail(tmp_path, step, rollbacks, skipped)
  last = failures.found(tmp_path)
  assert (last.step, last.rollbacks, last.skipped) == (7, 1, 5)
  assert last.message == "step 7: loss is nan"
  assert last.recent_of_offending() == {"loss": "1, inf, nan"}
  assert failures.found(tmp_path, 9).rollbacks == 0
  assert refusal(failures.found, tmp_path, 8) == (
      "--step=8: did not fail; choose one of the steps 6, 7, 9")
  assert "has no failed step" in refusal(failures.found, tmp_path / "other")
  (tmp_path / "failures" / "step-00000009" / "failure.json").write_text("{}")
  assert "failure.json: is corrupt" in refusal(failures.found, tmp_path)


@pytest.mark.parametrize(("saved", "rollbacks", "expected"), [
    ([(4, 0, True), (6, 0, True), (8, 0, True)], 0, 6),
    ([(4, 0, True), (5, 0, False)], 0, 5),
    ([(4, 0, True), (5, 0, False)], 1, 4),  # A rollback goes to one that was due.
    ([(4, 0, True), (5, 1, False)], 1, 5),
    ([(4, 2, True), (2, 0, True)], 1, 2),  # What comes after a later rollback is another run.
    ([(8, 0, True)], 0, 0)])
def test_a_run_goes_to_the_failure_from_its_last_checkpoint(saved, rollbacks, expected, tmp_path):
  run, workdir = tmp_path / "run", tmp_path / "replayed"
  workdir.mkdir()
  fail(run, 7, rollbacks, skipped=3 * rollbacks)
  for each in saved:
    save(run, *each)
  assert failures.prepare(run, failures.found(run), workdir) == expected
  if expected:
    folder, facts = store.some_good(workdir / "checkpoints")
    assert facts["step"] == expected and store.read_bundle(folder)["x"] == expected
    assert facts["loop"] == {"rollbacks": rollbacks, "skipped": 3 * rollbacks, "seconds": 1.0}


def test_a_failure_after_a_rollback_needs_a_checkpoint(tmp_path):
  fail(tmp_path, 7, rollbacks=1)
  save(tmp_path, 8, rollbacks=1)
  assert "the checkpoint from which the run reached step 7 is gone" in refusal(
      failures.prepare, tmp_path, failures.found(tmp_path), tmp_path / "w")


def failure(folder: pathlib.Path) -> Failure:
  return Failure(folder, 7, "", {}, {}, 0, 0)


STRINGS = [b"", b"\0", b"a\0", "ä".encode(), *[b"a"] * 8]


def test_the_parts_of_the_workers_are_one_batch_in_the_structure_of_the_data(tmp_path):
  whole = {"pair": (np.arange(24.0).reshape([12, 2]), np.array(STRINGS, object)),
           "file": np.arange(12)}
  for worker in range(12):  # The tenth comes after the second.
    part = {"pair": tuple(x[worker:worker + 1] for x in whole["pair"]),
            "file": whole["file"][worker:worker + 1]}
    failures.write_batch(tmp_path / f"batch-worker-{worker}.npz", part)
  like = {"pair": (np.zeros([12, 2]), np.array([b""] * 12, object)), "file": np.zeros([12])}
  found = failures.batch_of(failure(tmp_path), like)
  assert isinstance(found["pair"], tuple)
  np.testing.assert_array_equal(found["pair"][0], whole["pair"][0])
  assert list(found["pair"][1]) == STRINGS
  np.testing.assert_array_equal(found["file"], whole["file"])
  (tmp_path / "batch-worker-3.npz").unlink()
  assert "has 11 of 12 examples" in refusal(failures.batch_of, failure(tmp_path), like)
  assert "its batch has " in refusal(failures.batch_of, failure(tmp_path), np.zeros([12]))


def test_a_step_without_data_has_no_batch(tmp_path):
  assert failures.batch_of(failure(tmp_path), None) is None
