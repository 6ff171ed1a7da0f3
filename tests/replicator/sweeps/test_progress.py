"""The lines that a sweep prints."""

from replicator.sweeps import progress


def test_each_end_and_the_state_are_a_line(ranked):
  current = [result for result in ranked if result.is_current]
  assert progress.ended(current[0]) == f"done    {current[0].record.id}  eval/loss 1  1m 01s"
  failed = next(result for result in ranked if result.record.id == "t0")
  assert progress.ended(failed) == "failed  t0  1m 01s  error: <it> broke"
  assert progress.state(current, 8) == "7 of 8 done, 1 failed; the best: t1  eval/loss 1"
  assert progress.state([failed], 8) == "0 of 8 done, 1 failed"
