"""Profiles of steps: what they say, and that they change nothing."""

import re
import sys

import pytest
import tensorflow as tf

from replicator.errors import RunFailed
from replicator.internals import tensorflow_internals
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points
from tests.replicator.training.runs import train

CALLS_OF_2 = ["train.steps_per_call = 2", "train.log_every = 2"]
PROFILED_3_TO_5 = [*CALLS_OF_2, "train.profile = (3, 5)"]


def profiles(workdir):
  return list(workdir.glob("plugins/profile/*/*.xplane.pb"))


def test_a_profile_says_what_took_time_and_changes_nothing(tmp_path, capsys):
  for name, bindings in [("plain", CALLS_OF_2), ("profiled", PROFILED_3_TO_5)]:
    train(tmp_path / name, "train.steps = 8", "train.checkpoint_every = 4", *bindings,
          inputs=Points())
  assert rows(tmp_path / "plain") == rows(tmp_path / "profiled")
  (profile,) = profiles(tmp_path / "profiled")
  times = tensorflow_internals.operation_times(profile.read_bytes())
  # On some CPUs oneDNN puts operations of its own in the place of these, such as `_MklMatMul`.
  assert 0 < sum(seconds for name, seconds in times.items() if name.endswith("MatMul")) < 60
  printed = capsys.readouterr().out  # Whole calls.
  shares = re.search(r"profile +steps 3 to 6: [\d.]+ ms each; input (\d+)%, step (\d+)%, "
                     r"host (\d+)%\n", printed)
  assert 99 <= sum(map(int, shares.groups())) <= 101
  assert len(re.findall(r"^ +\d+%  [\d.e-]+ ms a step  \S+:\w+$", printed, re.MULTILINE)) == 10
  assert f"tensorboard --logdir={tmp_path / 'profiled'} shows more" in printed.replace("\n", " ")

  # A run that resumes behind the first of the steps profiles none.
  train(tmp_path / "profiled", "train.steps = 10", *PROFILED_3_TO_5, inputs=Points())
  assert "resumed at step 8" in capsys.readouterr().out
  assert profiles(tmp_path / "profiled") == [profile]


def test_a_profile_that_tensorflow_cannot_read_is_left_to_tensorboard(
    tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow.tsl.profiler.protobuf", None)
  train(tmp_path, "train.steps = 2", "train.profile = (2, 2)", step=Counter)
  printed = capsys.readouterr().out
  assert "steps 2 to 2: " in printed and "shows its operations" in printed.replace("\n", " ")


def test_a_failed_step_ends_the_profile(tmp_path):
  def step():
    count = tf.Variable(0.0)
    return lambda: {"loss": 1.0 / (3.0 - count.assign_add(1.0))}

  for name in ("first", "second"):  # The second could not start it if the first were running.
    with pytest.raises(RunFailed, match="step 3: loss is inf"):
      train(tmp_path / name, "train.steps = 5", "train.profile = (2, 4)", step=step)
    assert not profiles(tmp_path / name)


@pytest.mark.parametrize("value", ["(4, 3)", "(0, 2)", "(5, 11)"])
def test_steps_that_cannot_be_profiled_are_refused(value, tmp_path):
  said = refusal(train, tmp_path, "train.steps = 10", f"train.profile = {value}", step=pytest.fail)
  assert f"train.profile = {value}: must be the first and the last step" in said
