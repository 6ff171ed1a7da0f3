"""MAML: its updates are those of the paper's formulas, also through the inner loop."""

import re

from experiments import maml
from experiments.maml import MAML
from replicator import random
from replicator.app import config
from replicator.step import context
from tests.experiments.line import gradients_of, one_step
from tests.programs.processes import ROOT
from tests.replicator.training.runs import MIRRORED_2

import keras
import numpy as np
import pytest
import tensorflow as tf

TASKS, POINTS, RATE, STEPS = 3, 4, 0.1, 2


def error(weights, x, y):
  """The mean squared error of a network of two hidden layers, and its gradients by hand."""
  inputs, outputs = [], x
  for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
    inputs.append(outputs if not inputs else np.where(outputs.real > 0, outputs, 0))
    outputs = inputs[-1] @ kernel + bias
  gradients, back = [], 2 * (outputs - y) / len(y)
  for kernel, given in zip(weights[-2::-2], inputs[::-1], strict=True):
    gradients = [given.T @ back, back.sum(0), *gradients]
    back = back @ kernel.T * (given.real > 0)
  return ((outputs - y) ** 2).mean(), gradients


def adapted(weights, x, y):
  for _ in range(STEPS):
    weights = [w - RATE * g for w, g in zip(weights, error(weights, x, y)[1], strict=True)]
  return weights


@pytest.mark.parametrize("first_order", [False, True])
def test_a_step_makes_the_updates_of_the_formulas(first_order, float64, monkeypatch):
  keras.utils.set_random_seed(0)
  monkeypatch.setattr(context.run, "global_batch_size", TASKS)
  step = MAML(lambda: keras.optimizers.SGD(1.0), POINTS, (3, 2), RATE, STEPS, first_order)
  before = [[v.numpy() for v in network.trainable_variables]
            for network in (step.initial, step.pretrained)]
  with context.entered(tf.constant(0, tf.int64)):
    amplitude, phase = (random.uniform(name, [TASKS, 1, 1], low, high).numpy() for name, low, high
                        in (("amplitude", 0.1, 5.0), ("phase", 0.0, np.pi)))
    x = random.uniform("x", [TASKS, 2 * POINTS, 1], -5.0, 5.0).numpy()
  y = amplitude * np.sin(x - phase)
  points, queries = slice(POINTS), slice(POINTS, None)
  scalars = one_step(step)

  def loss(weights, task):
    return error(adapted(weights, x[task, points], y[task, points]),
                 x[task, queries], y[task, queries])[0]

  def gradients(task):
    if not first_order:
      return gradients_of(lambda weights: loss(weights, task), before[0])
    return error(adapted(before[0], x[task, points], y[task, points]),
                 x[task, queries], y[task, queries])[1]

  expected = np.mean([loss(before[0], task) for task in range(TASKS)])
  of_all, of_pretrained = error(before[1], x.reshape(-1, 1), y.reshape(-1, 1))
  np.testing.assert_allclose([scalars["loss/initial"], scalars["loss/pretrained"]], [expected,
                                                                                     of_all],
                             rtol=1e-9)
  of_initial = [np.mean(each, 0) for each in zip(*map(gradients, range(TASKS)), strict=True)]
  for network, weights, wanted in zip((step.initial, step.pretrained), before,
                                      (of_initial, of_pretrained), strict=True):
    for variable, value, gradient in zip(network.trainable_variables, weights, wanted,
                                         strict=True):
      np.testing.assert_allclose(value - variable.numpy(), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision, tolerance", [
    pytest.param("mixed_float16", 0.02, marks=pytest.mark.slow), ("mixed_bfloat16", 0.05)])
def test_the_first_step_in_half_precision_is_as_on_one_device(
    precision, tolerance, tmp_path, capsys):
  config.parse([str(ROOT / "configs/maml_sinusoids.gin")], [
      "train.steps = 1", "train.steps_per_call = 1", "train.eval_every = 0", "train.log_every = 1",
      "train.checkpoint_every = 0", "MAML.sizes = (5,)", "Replicator.jit_compile = False",
      f"train.precision = '{precision}'", *MIRRORED_2])
  maml.train_maml(str(tmp_path))
  said = capsys.readouterr().out
  assert float(re.search(r"first step: same as on one device, (\S+)", said)[1]) < tolerance


def test_an_evaluation_may_be_on_fewer_tasks_than_the_picture_has_room_for():
  found = maml.evaluate(maml.MAML(keras.optimizers.SGD, sizes=(4,)), 2)
  assert found.images["samples"].ndim == 3 and np.isfinite(list(found.scalars.values())).all()


def test_an_evaluation_has_the_errors_after_so_many_steps_of_each_network(float64):
  keras.utils.set_random_seed(0)
  step = MAML(lambda: keras.optimizers.SGD(1.0), POINTS, (3, 2), RATE)
  tasks = [each.numpy() for each in maml.evaluation_tasks(2, POINTS)]

  def errors(network, rate):
    """The errors after 0 to 10 steps."""
    found = np.zeros(11)
    for x, y, query_x, query_y in zip(*tasks, strict=True):
      weights = [v.numpy() for v in network.trainable_variables]
      for count in range(11):
        found[count] += error(weights, query_x, query_y)[0] / 2
        weights = [w - rate * g for w, g in zip(weights, error(weights, x, y)[1], strict=True)]
    return found

  of_maml, pretrained = (errors(network, RATE) for network in (step.initial, step.pretrained))
  best = np.min([pretrained, *(errors(step.pretrained, rate) for rate in (2e-3, 5e-3, 0.02))], 0)
  assert maml.evaluate(step, 2).scalars == pytest.approx({
      f"{name}_{count}": each[count] for count in (0, 1, 5, 10) for name, each in (
          ("maml", of_maml), ("pretrained", pretrained), ("pretrained_best", best))}, rel=1e-9)
