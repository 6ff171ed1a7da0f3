"""The command line of a sweep."""

import pytest


def test_a_name_that_the_experiment_rejects_is_told_before_any_trial_runs(sweep):
  assert sweep.write(grid={"lrr": [1]}).run() == 2
  assert sweep.err.startswith("error: ") and sweep.err.count("\n") == 1
  assert "rejects a trial: --gin_param: nothing configurable is called 'lrr'" in sweep.err
  assert not sweep.logs()


def test_an_experiment_that_is_not_there_is_told(sweep):
  assert sweep.write(experiment="experiments.sngna").run() == 2
  assert ("sweep.experiment = 'experiments.sngna': no such module or file. Did you mean "
          "'experiments.sngan'?") in sweep.err


@pytest.mark.parametrize("flags, message", [
  (["--runner=rai"], "--runner=rai: no such runner. Did you mean 'ray'?"),
  (["--jobs=0"], "--jobs=0: must be at least 1"),
  (["--job=1"], "unrecognized arguments: --job=1. Did you mean '--jobs'?"),
  (["--workdir={file}"], "is a file; write the name of a folder"),
])
def test_a_bad_command_line_is_told_in_one_line(flags, message, sweep):
  assert sweep.run(*(flag.format(file=sweep.file) for flag in flags)) == 2
  assert message in sweep.err and sweep.err.count("\n") == 1


