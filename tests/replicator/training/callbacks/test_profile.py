"""Profiles of steps: what they say, and that they change nothing."""

import re
import sys

from replicator.errors import RunFailed
from replicator.internals import tensorflow_internals
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points
from tests.replicator.training.runs import train

import pytest
import tensorflow as tf

CALLS_OF_2 = ["train.steps_per_call = 2", "train.log_every = 2"]


def profiled(first: int, last: int) -> list[str]:
  return ["train.callbacks = [@Profile()]", f"Profile.first = {first}", f"Profile.last = {last}"]


PROFILED_3_TO_5 = [*CALLS_OF_2, *profiled(3, 5)]


def profiles(workdir):
  return list(workdir.glob("plugins/profile/*/*.xplane.pb"))


def test_a_profile_says_what_took_time_and_changes_nothing(tmp_path, capsys):
  for name, bindings in [("plain", CALLS_OF_2), ("profiled", PROFILED_3_TO_5)]:
    train(tmp_path / name, "train.steps = 8", "train.checkpoint_every = 4", *bindings,
          inputs=Points())
  assert rows(tmp_path / "plain") == rows(tmp_path / "profiled")
  (profile,) = profiles(tmp_path / "profiled")
  times = tensorflow_internals.operation_times(profile.read_bytes())
  # On some processors oneDNN replaces them by its own: `:_MklMatMul`, `:_MklNativeFusedMatMul`.
  assert 0 < sum(seconds for name, seconds in times.items() if name.endswith("MatMul")) < 60
  printed = capsys.readouterr().out  # Whole calls.
  shares = re.search(r"profile +steps 3 to 6: [\d.]+ ms each; input (\d+)%, step (\d+)%, "
                     r"host (\d+)%\n", printed)
  assert 99 <= sum(map(int, shares.groups())) <= 101
  assert len(re.findall(r"^ +\d+%  [\d.e-]+ ms per step  \S+:\w+$", printed, re.MULTILINE)) == 10
  assert f"more: tensorboard --logdir={tmp_path / 'profiled'}" in printed.replace("\n", " ")

  # A run that resumes behind the first of the steps profiles none.
  train(tmp_path / "profiled", "train.steps = 10", *PROFILED_3_TO_5, inputs=Points())
  assert "resumed at step 8" in capsys.readouterr().out
  assert profiles(tmp_path / "profiled") == [profile]


def test_a_profile_that_tensorflow_cannot_read_is_left_to_tensorboard(
    tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow.tsl.profiler.protobuf", None)
  train(tmp_path, "train.steps = 2", *profiled(2, 2), step=Counter)
  printed = capsys.readouterr().out
  assert "steps 2 to 2: " in printed and "its operations: tensorboard" in printed.replace("\n", " ")


def test_a_failed_step_ends_the_profile(tmp_path):
  def step():
    count = tf.Variable(0.0)
    return lambda: {"loss": 1.0 / (3.0 - count.assign_add(1.0))}

  for name in ("first", "second"):  # The second could not start it if the first were running.
    with pytest.raises(RunFailed, match="step 3: loss is inf"):
      train(tmp_path / name, "train.steps = 5", *profiled(2, 4), step=step)
    assert not profiles(tmp_path / name)


@pytest.mark.parametrize("first, last, message", [
    (4, 3, "must be the first and last steps to profile"),
    (0, 2, "must be the first and last steps to profile"),
    (5, 11, "Profile.last = 11: must be at most train.steps = 10")])
def test_steps_that_cannot_be_profiled_are_refused(first, last, message, tmp_path):
  assert message in refusal(train, tmp_path, "train.steps = 10", *profiled(first, last),
                            step=Counter)
