"""The lines that a sweep prints."""

from replicator.sweeps import progress


def test_each_end_and_the_state_are_a_line(ranked):
  current = [result for result in ranked if result.is_current]
  assert progress.ended(current[0]) == f"done    {current[0].record.id}  eval/loss 1  1m 01s"
  failed = next(result for result in ranked if result.record.id == "t0")
  assert progress.ended(failed) == "failed  t0  1m 01s  error: <it> broke"
  assert progress.state(current, 8) == "7 of 8 done, 1 failed; the best: t1  eval/loss 1"
  assert progress.state([failed], 8) == "0 of 8 done, 1 failed"


def test_a_line_names_the_trials_that_are_not_of_the_sweep_now(ranked):
  for result in ranked[:3]:
    result.is_current = False
  (line,) = progress.apart(ranked)
  assert line.endswith(" have changed since: t1, t2, t3 and 1 more")
  assert progress.apart(ranked[3:-1]) == []
