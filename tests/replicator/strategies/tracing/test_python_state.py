"""Draws of Python and NumPy in a step, and optimizers that it leaves out, are named."""

import random

import replicator
from replicator.strategies.tracing import python_state
from tests.replicator.training.runs import column, train

import keras
import numpy as np
import pytest
import tensorflow as tf


class Drawing(tf.Module):
  """A step that draws outside of TensorFlow, and applies one of its two optimizers."""

  def __init__(self):
    super().__init__()
    self.rng, self.unused = np.random.default_rng(0), np.random.default_rng(1)
    self.calls, self.constant, self.is_first = 0, 0, True
    self.networks = [keras.Sequential([keras.Input([1]), keras.layers.Dense(1),
                                       keras.layers.Dropout(0.5)]) for _ in range(2)]
    self.optimizers = [replicator.wrap_optimizer(keras.optimizers.SGD(0.1), net.trainable_variables)
                       for net in self.networks]

  def __call__(self) -> dict[str, tf.Tensor]:
    x = tf.fill([2, 1], float(self.rng.normal()))
    self.calls, self.is_first, self.rows = self.calls + 1, False, 2
    if self.draws:
      x += np.random.normal() + random.random()
    loss = lambda: tf.reduce_mean(self.networks[0](x) ** 2)
    return {"loss": self.apply(lambda: self.optimizers[0].minimize(loss))}

  draws = True
  apply = staticmethod(lambda update: update())


class Branching(Drawing):
  """A step that makes its update in some steps only."""

  draws = False
  apply = staticmethod(lambda update: tf.cond(replicator.step_number() > 1, update, lambda: 0.0))


@pytest.mark.parametrize("step, bindings, draws", [
    (Drawing, ["train.steps_per_call = 2"], ["np.random", "Python's random"]), (Branching, [], [])])
def test_a_training_names_what_is_constant_or_left_out(step, bindings, draws, tmp_path, capsys):
  train(tmp_path, "train.steps = 2", "train.log_every = 2", *bindings, step=step)
  assert [line for line in capsys.readouterr().out.splitlines() if "warning" in line] == [
      *(f"warning: {name} was called while the step was traced, so its numbers are constants; "
        "draw with replicator.random" for name in [*draws, "the generator 'rng'"]),
      "warning: the attribute 'calls' changed from 0 to 1 while the step was traced, which "
      "happens once, not at every step; if it is a counter, keep it in a tf.Variable",
      "warning: the step does not apply its optimizer 'optimizers/1', so the 2 variables that it "
      "owns do not train; call its minimize or apply, or leave it out"]


def test_a_generator_that_a_step_makes_while_it_is_traced_is_named():
  step, found = tf.Module(), []
  with python_state.draws_noted_in(found, step):
    step.noise = np.random.default_rng(0)
    step.noise.normal()
  line, = found
  assert line.startswith("the generator 'noise' was called while the step was traced")


def test_what_a_step_does_not_draw_from_is_not_named():
  found: list[str] = []
  with python_state.draws_noted_in(found, Drawing()):
    keras.random.normal([2], seed=1)
    np.random.default_rng(3).normal()
  assert found == []


@pytest.mark.parametrize("generator", [
    np.random.default_rng(0), np.random.RandomState(0), random.Random(0)])
def test_generators_of_each_kind_that_a_step_holds_are_named(generator):
  step, found = tf.Module(), []
  step.noise = generator
  with python_state.draws_noted_in(found, step):
    generator.random()
  line, = found
  assert line.startswith("the generator 'noise' was called while the step was traced")


class Annealed(tf.Module):
  """A step with numbers that Python changes between calls."""

  def __init__(self):
    super().__init__()
    self.beta, self.constant, self.acting = 1.0, 3, {"calls": 0}

  def __call__(self) -> dict[str, tf.Tensor]:
    return {"beta": tf.constant(self.beta)}


def anneal(step: Annealed, number: int) -> None:
  step.beta *= 0.5
  step.acting["calls"] += 1  # The step does not use it.


def test_a_number_that_changes_after_the_trace_is_named_once(tmp_path, capsys):
  train(tmp_path, "train.steps = 4", step=Annealed, before_call=anneal)
  line, = (line for line in capsys.readouterr().out.splitlines() if "warning" in line)
  assert "'beta' was 0.5 when" in line and "is 0.25 now" in line
  assert set(column(tmp_path, "beta").values()) == {0.5}  # The warning is right.
