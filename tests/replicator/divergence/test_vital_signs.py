"""Runs whose numbers are finite, but which have exploded or are dead; and runs that are well."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.app import config
from replicator.divergence.vital_signs import VitalSigns
from replicator.errors import RunFailed, first_line
from tests.programs.logs import rows

STEPS = 400
RNG = np.random.default_rng(0)
NOISE = np.abs(RNG.normal(2.0, 0.3, STEPS))  # What an ordinary loss or norm looks like.
SINCE_200 = np.where(np.arange(STEPS) < 200, 1.0, 0.0)


def told(signs: VitalSigns | None = None, steps_per_call: int = 1, **series) -> list[str]:
  """Each alarm with its step, counted from 1; `g__d` is the scalar 'grad_norm/d'."""
  signs = signs or VitalSigns()
  named = {name.replace("g__", "grad_norm/"): np.asarray(values, np.float32)
           for name, values in series.items()}
  length = len(next(iter(named.values())))
  found = []
  for first in range(0, length, steps_per_call):
    part = {name: values[first:first + steps_per_call] for name, values in named.items()}
    for i, reasons in enumerate(signs.alarms(part)):
      found += [f"{first + i + 1}: {name}{reason}" for name, reason in reasons.items()]
  return found


def at(step: int, value: float, series: np.ndarray = NOISE) -> np.ndarray:
  """A series with another value at a step, counted from 1."""
  return np.where(np.arange(1, STEPS + 1) == step, value, series)


# ---- What is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_per_call", [1, 10])
@pytest.mark.parametrize("series, step, usual", [
    (at(300, 1e7), 300, 2.0), (at(300, -1e7), 300, 2.0), (at(2, 2e21), 2, 2.0),
    (at(300, 1e13, 1e5 * NOISE), 300, 2e5), (at(300, 1e7, -NOISE), 300, 2.0),
    # The loss of a regression whose learning rate is a little too high grows at every step.
    (2.0 * 1.1 ** np.arange(STEPS), 181, 5.0)],
    ids=["up", "down", "at once", "large", "from below", "slowly"])
def test_an_explosion_is_told_once(series, step, usual, steps_per_call):
  for name in ("loss", "grad_norm/d"):
    (line,) = told(steps_per_call=steps_per_call, **{name.replace("grad_norm/", "g__"): series})
    found = re.fullmatch(rf"{step}: {name}, and was about (\S+) at first: it has exploded", line)
    assert float(found[1]) == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("steps_per_call", [1, 8])
def test_a_network_that_died_is_told_once(steps_per_call):
  assert told(steps_per_call=steps_per_call, g=NOISE, d=NOISE, g__g=NOISE * SINCE_200, g__d=NOISE
              ) == ["300: grad_norm/g for 100 steps in a row: its network does not learn"]


def test_if_nothing_learns_any_more_a_loss_of_0_is_no_excuse():
  dead = NOISE * SINCE_200
  assert told(loss=dead, g__g=dead, g__d=dead) == [
      "300: grad_norm/g for 100 steps in a row: its network does not learn",
      "300: grad_norm/d for 100 steps in a row: its network does not learn"]


def test_if_most_networks_died_a_loss_of_0_is_no_excuse():
  # The scores of a dead discriminator are 0, and so is the loss of its generator.
  dead = NOISE * SINCE_200
  found = told(d=dead + 2.0, g=dead, e=NOISE, g__d=dead, g__g=dead, g__e=NOISE)
  assert [line.split(" for")[0] for line in found] == ["300: grad_norm/d", "300: grad_norm/g"]


def test_a_network_that_never_learned_is_told():
  assert told(loss=NOISE, g__g=0 * NOISE, g__d=NOISE) == [
      "100: grad_norm/g for 100 steps in a row: its network does not learn"]


def test_a_network_that_comes_to_life_may_die_again():
  norm = np.concatenate([NOISE[:50], np.zeros(120), NOISE[:50], np.zeros(150)])
  assert [line.split(":")[0] for line in told(loss=NOISE[:370], g__g=norm)] == ["150", "320"]


# ---- What is well -------------------------------------------------------------------------------


@pytest.mark.parametrize("series", [
    NOISE, 1e-9 * NOISE, at(1, 1e-12), at(300, 1.9e6), np.cumsum(NOISE) * 1e7,
    np.where(np.arange(STEPS) < 30, 0.0, 1e4 * NOISE),     # A loss that begins later.
    np.where(np.arange(STEPS) < 30, 1e-7 * NOISE, NOISE),  # One that is near 0 at first.
    np.where(np.arange(STEPS) < 30, NOISE, 0.0),           # One that is learned.
    1.7e9 + np.arange(STEPS), 1e8 * NOISE, -NOISE, 0 * NOISE,
    np.where(np.arange(STEPS) % 7 == 0, np.nan, NOISE), at(3, np.inf)],
    ids=["noise", "tiny", "first is tiny", "below", "sum", "later", "near 0", "learned", "clock",
         "large", "negative", "zero", "nan", "inf"])
def test_ordinary_scalars_raise_no_alarm(series):
  assert told(scalar=series) == []


def test_a_count_may_grow_without_end():
  signs = VitalSigns()
  for first in (0, 10 ** 7, 10 ** 9):  # It goes on, as after a resume.
    signs = VitalSigns(signs.state())
    count = np.arange(first, first + 1000, dtype=np.float64)
    assert not any(signs.alarms({"environment_steps": count}))
    # The steps between are not given one by one.
    signs._scalars["environment_steps"].last = {0: 1e7, 10 ** 7: 1e9}.get(first, 0.0)


def test_a_discriminator_that_is_right_by_a_margin_may_rest():
  # The hinge loss and its gradients become 0 at the same step, and come back.
  rests = NOISE * ((np.arange(STEPS) < 80) | (np.arange(STEPS) > 350))
  assert told(d=rests, g=NOISE, g__d=rests, g__g=NOISE) == []


def test_what_begins_later_has_not_died():
  begins = NOISE * (np.arange(STEPS) >= 200)
  assert told(actor=begins, critic=begins, g__actor=begins, g__critic=begins) == []
  assert told(actor=begins, critic=NOISE, g__actor=begins, g__critic=NOISE) == []


def test_two_updates_with_pauses_between_have_not_died():
  assert told(loss=NOISE, g__g=np.where(np.arange(STEPS) % 99 == 0, NOISE, 0.0)) == []


@pytest.mark.parametrize("stop", [1, 5, 19, 20, 150, 299, 300])
def test_a_state_goes_on_exactly(stop):
  series = {"loss": at(250, 1e9), "g__d": NOISE * SINCE_200, "late": NOISE * (1 - SINCE_200)}
  whole = told(**series)
  assert [line.split(":")[0] for line in whole] == ["250", "300"]
  signs = VitalSigns()
  first = told(signs, **{name: values[:stop] for name, values in series.items()})
  signs = VitalSigns(json.loads(json.dumps(signs.state())))
  rest = told(signs, **{name: values[stop:] for name, values in series.items()})
  steps = [int(line.split(":")[0]) for line in first]
  steps += [int(line.split(":")[0]) + stop for line in rest]
  assert steps == [250, 300]


# ---- Runs ---------------------------------------------------------------------------------------


class Relu(tf.Module):
  """A unit that a learning rate of 1e3 throws far off, and kills: loss and gradients stay 0."""

  def __init__(self, learning_rate: float = 1e3):
    super().__init__()
    self.weight = keras.Variable(3.0, name="weight")
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(learning_rate), [self.weight])

  def __call__(self):
    return {"loss": self.optimizer.minimize(lambda: tf.nn.relu(self.weight.value) ** 4)}


pytestmark = pytest.mark.usefixtures("restored", "without_curves")
DEAD = "step 101: grad_norm/optimizer is 0 for 100 steps in a row: its network does not learn"
STRICT = "; Guard.strict = True makes Guard.action apply"


def train(workdir: pathlib.Path, *bindings: str, steps: int = 120, step=Relu):
  config.parse([], [f"train.steps = {steps}", "train.log_every = 10", "train.eval_every = 0",
                    "train.checkpoint_every = 40", *bindings])
  return replicator.train(step, workdir=str(workdir))


def warnings(capsys) -> list[str]:
  return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]


@pytest.mark.parametrize("steps_per_call", [1, 10])
def test_a_dead_run_says_so_once_and_resumes_with_what_it_knows(steps_per_call, tmp_path, capsys):
  setting = f"train.steps_per_call = {steps_per_call}"
  train(tmp_path / "whole", setting)
  assert warnings(capsys) == [f"warning: {DEAD}{STRICT}"]
  for steps in (40, 80):
    train(tmp_path / "resumed", setting, steps=steps)
  assert warnings(capsys) == []
  train(tmp_path / "resumed", setting)
  assert warnings(capsys) == [f"warning: {DEAD}{STRICT}"]
  assert rows(tmp_path / "resumed") == rows(tmp_path / "whole")
  train(tmp_path / "resumed", setting, steps=140)
  assert warnings(capsys) == []


def test_a_strict_guard_stops_a_dead_run(tmp_path):
  with pytest.raises(RunFailed) as caught:
    train(tmp_path, "Guard.strict = True")
  folder = tmp_path / "failures" / "step-00000101"
  assert first_line(caught.value) == (
      f"{DEAD}; its numbers are in {folder}; the last good checkpoint is of step 80, from which "
      "Guard.action = 'roll_back' would go on")
  facts = json.loads((folder / "failure.json").read_text())
  assert facts["offending"] == {"grad_norm/optimizer": 0.0}
  assert facts["recent"]["loss"] == [0.0] * 20


class Explodes(tf.Module):
  """Jumps at step 7."""

  def __call__(self):
    jumps = replicator.step_number() == 6
    return {"loss": tf.where(jumps, 3e9, 2.0), "other": tf.where(jumps, -1e30, 1.0)}


def test_an_exploded_run_says_so_or_goes_back(tmp_path, capsys):
  train(tmp_path / "warned", steps=10, step=Explodes)
  exploded = "step 7: loss is 3e+09, and was about 2 at first: it has exploded (and 1 more)"
  assert warnings(capsys) == [f"warning: {exploded}{STRICT}"]
  with pytest.raises(RunFailed, match=rf"^{re.escape(exploded)} after 2 rollbacks; its numbers"):
    train(tmp_path / "back", "Guard.strict = True", "Guard.action = 'roll_back'",
          "Guard.max_rollbacks = 2", steps=10, step=Explodes)
  train(tmp_path / "off", "Guard.action = 'off'", steps=10, step=Explodes)
  assert warnings(capsys) == []


class FailsTwice(tf.Module):
  """Explodes at step 3, and is NaN at step 5."""

  def __call__(self):
    step = replicator.step_number()
    return {"loss": tf.where(step == 2, 1e9, tf.where(step == 4, np.nan, 1.0))}


@pytest.mark.parametrize("strict, step, warned", [("True", 3, False), ("False", 5, True)])
def test_the_first_failure_of_a_call_counts(strict, step, warned, tmp_path, capsys):
  with pytest.raises(RunFailed, match=rf"^step {step}: loss is"):
    train(tmp_path, f"Guard.strict = {strict}", "train.steps_per_call = 10", steps=10,
          step=FailsTwice)
  assert [line.startswith("warning: step 3: loss is 1e+09, and") for line in warnings(capsys)
          ] == [True] * warned
