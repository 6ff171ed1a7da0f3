"""The content of a workdir as it is read, and how its run went."""

import json

from replicator.training.workdir import reader

import numpy as np
import pytest


def run_of(folder, *rows, **facts) -> reader.Run:
  (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  (folder / "run.json").write_text(json.dumps(facts))
  return reader.read(folder)


@pytest.mark.parametrize("losses, facts, status", [
    ([], {}, ("warn", "nothing logged")),
    ([1.0, 2.0], {"steps": 2}, ("good", "finished at step 2")),
    ([1.0, 2.0], {"steps": 3}, ("warn", "step 2 of 3")),
    ([1.0, 2.0], {"steps": 3, "ended": "preempted: SIGTERM"}, ("warn", "preempted at step 2 of 3")),
    ([1.0, 2.0], {"steps": 3, "ended": "stopped early"}, ("good", "stopped early at step 2 of 3")),
    ([1.0, 2.0], {"steps": 3, "ended": "failed: no space"}, ("bad", "failed after step 2")),
    ([1.0, "NaN"], {"steps": 2}, ("bad", "not finite at step 2: loss")),
    (["NaN", 2.0], {"steps": 2}, ("good", "finished at step 2")),  # It recovered.
    ([1.0, "NaN"], {"steps": 3, "ended": "failed: nan"}, ("bad", "not finite at step 2: loss")),
    ([1.0, 2.0], {"steps": 2, "ended": "interrupted"}, ("good", "finished at step 2")),
])
def test_the_status_is_that_of_the_last_step(losses, facts, status, tmp_path):
  rows = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
  assert run_of(tmp_path, *rows, **facts).status() == status


def test_evaluations_come_first_and_keep_their_own_steps(tmp_path):
  run = run_of(tmp_path, {"step": 1, "seconds": 3.0, "loss": 4.0, "note": "words", "list": [1.0]},
               {"step": 2, "loss": 5.0, "eval/error": 6.0})
  assert list(run.series()) == ["eval/error", "loss"]
  assert list(map(reader.kind, ("eval/x", "evaluated"))) == ["evaluation", "training"]
  for name, steps, values in (("eval/error", [2], [6.0]), ("loss", [1, 2], [4.0, 5.0])):
    np.testing.assert_array_equal(run.series()[name], (steps, values))


def test_metrics_stand_in_groups_evaluations_and_losses_first():
  assert reader.in_groups(["value", "loss/g", "grad_norm/g", "eval/a/b", "staleness", "sigma/g",
                           "loss/d", "eval/c", "grad_norm/d"]) == [
      "eval/a/b", "eval/c", "loss/g", "loss/d", "value", "staleness", "grad_norm/g", "grad_norm/d",
      "sigma/g"]


def test_pictures_come_in_the_order_of_their_steps(tmp_path):
  (tmp_path / "samples").mkdir()
  for step in (50, 0, 30, 10, 70, 40, 60, 20):
    (tmp_path / "samples" / f"step-{step:08d}.png").touch()
  (tmp_path / "samples" / "best.png").touch()
  assert [path.name for path in reader.read(tmp_path).samples] == [
      f"step-{step:08d}.png" for step in range(0, 80, 10)]


def test_what_is_torn_or_no_text_or_no_dict_is_counted_and_left_out(tmp_path):
  (tmp_path / "metrics.jsonl").write_bytes(
      b'{"step": 1, "d": 1.0}\n{"step": 2, "d"\n[3]\n{"d": 1}\n\xff\n{"step": "2"}\n')
  (tmp_path / "run.json").write_text("[1, 2]")
  run = reader.read(tmp_path)
  assert (run.rows, run.num_corrupt, run.facts) == ([{"step": 1, "d": 1.0}], 5, {})
