"""The first step of a resumed run repeats the one that followed its checkpoint before."""

import os
import re
import signal

import replicator
from replicator import Callback
from replicator.app import config
from replicator.errors import Preempted
from tests.programs.two_networks import Points, TwoNetworks
from tests.replicator.training.checkpoints.runs import values
from tests.replicator.training.runs import MIRRORED_2, SMALL, train

import numpy as np
import pytest
import tensorflow as tf

EXACT = "first step: same as before the restart, bit for bit\n"
SETTINGS = ["train.steps = 8", "train.checkpoint_every = 4", "train.log_every = 2",
            "train.check_first_step = True"]


class Forgetful(TwoNetworks):
  """Trains with noise that starts over when the run does."""

  def __call__(self, batch):
    return super().__call__({**batch, "x": batch["x"] + tf.random.normal(batch["x"].shape)})


def killed_and_resumed(tmp_path, capsys, *settings, now=(), step=TwoNetworks) -> str:
  """What a run says that was killed after step 6, and resumed at step 4 with what is set `now`."""
  def kill(step: object, number: int) -> None:
    if number == 6:
      raise InterruptedError

  with pytest.raises(InterruptedError):
    train(tmp_path, *SETTINGS, *settings, step=step, inputs=Points(), before_call=kill)
  capsys.readouterr()
  train(tmp_path, *SETTINGS, *settings, *now, step=step, inputs=Points())
  said = capsys.readouterr().out
  assert "resumed at step 4\n" in said
  return said


@pytest.mark.parametrize("settings", [
    [], pytest.param(MIRRORED_2, marks=pytest.mark.slow), ["train.steps_per_call = 2"]])
def test_a_sound_step_comes_again_bit_for_bit(settings, tmp_path, capsys):
  assert EXACT in killed_and_resumed(tmp_path, capsys, *settings)


@pytest.mark.parametrize("now", [MIRRORED_2, ["train.steps_per_call = 2"]])
def test_it_comes_again_to_rounding_on_other_replicas(now, tmp_path, capsys):
  said = killed_and_resumed(tmp_path, capsys, now=now)
  assert "first step: same as before the restart" in said and "warning" not in said


def test_state_that_is_not_saved_is_noticed(tmp_path, capsys):
  said = killed_and_resumed(tmp_path, capsys, step=Forgetful)
  assert re.search(r"warning: the first step differs from the one .*: \S+ \S+, was \S+; some state "
                   "is not saved", said)


def test_a_changed_setting_is_no_fault_and_sets_what_comes_next(tmp_path, capsys):
  said = killed_and_resumed(tmp_path, capsys, now=["train.global_batch_size = 4"])
  assert "first step: not the same as before the restart and its changes" in said
  assert "warning" not in said


def test_it_can_be_left_out(tmp_path, capsys):
  said = killed_and_resumed(tmp_path, capsys, "train.check_first_step = False", step=Forgetful)
  assert "first step" not in said
  assert not (tmp_path / "next_steps.json").exists()


class Stop(Callback):
  """Asks the run to stop after step 1, and looks at its step when it is saved and at the end."""

  every = 1

  def __init__(self):
    self.seen = []

  def after_steps(self, run):
    os.kill(os.getpid(), signal.SIGTERM)

  def saved(self, run):
    self.seen.append(values(run.module))

  def end(self, run, error):
    self.seen.append(values(run.module))


@pytest.mark.parametrize(("step", "expected"), [(TwoNetworks, EXACT), (Forgetful, "not saved")])
def test_a_run_that_is_stopped_computes_its_next_step_and_forgets_it(
    step, expected, tmp_path, capsys):
  stop = Stop()
  config.parse([], [*SMALL, *SETTINGS])
  with pytest.raises(Preempted):
    replicator.train(step, Points(), workdir=str(tmp_path), callbacks=[stop])
  saved, at_the_end = stop.seen
  for path, value in saved.items():
    np.testing.assert_array_equal(at_the_end[path], value, err_msg=path)
  capsys.readouterr()
  train(tmp_path, *SETTINGS, step=step, inputs=Points())
  said = capsys.readouterr().out
  assert expected in said, said
