"""MAML: initial weights from which a few steps of gradient descent learn a new task.

    python -m experiments.maml --gin_file=maml_sinusoids.gin

Finn et al. 2017 (arXiv:1703.03400), algorithm 2 on the sinusoids of section 5.1. Each example of a
batch is a task, so tasks are divided among the replicas, and the inner loop needs no collective.
The gradient goes through the inner loop, which needs second derivatives. As a baseline, a second
network is pretrained on the same points of the same tasks without an inner loop.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import replicator
from replicator import app, random
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf

_SHOWN = (0, 1, 5, 10)  # The numbers of gradient steps that an evaluation reports.
_RATES = (2e-3, 5e-3, 0.02)  # Additional learning rates for the pretrained network.
_SEED = 11  # All evaluations use the same tasks.


class Tasks(NamedTuple):
  """Tasks, each with k points to learn from and q to evaluate at; all are `[n, k or q, 1]`."""

  x: tf.Tensor
  y: tf.Tensor
  query_x: tf.Tensor
  query_y: tf.Tensor


def _sinusoids(amplitude: tf.Tensor, phase: tf.Tensor, x: tf.Tensor, query_x: tf.Tensor) -> Tasks:
  """Returns tasks y = amplitude sin(x - phase): `[n, 1, 1], [n, 1, 1], [n, k, 1], [n, q, 1]`."""
  y, query_y = (amplitude * tf.sin(each - phase) for each in (x, query_x))
  return Tasks(x, y, query_x, query_y)


def training_tasks(number: int, points: int) -> Tasks:
  """Draws this replica's tasks of this step, with `points` points and as many query points."""
  amplitude = random.uniform("amplitude", [number, 1, 1], 0.1, 5.0)
  phase = random.uniform("phase", [number, 1, 1], 0.0, math.pi)
  x = random.uniform("x", [number, 2 * points, 1], -5.0, 5.0)
  return _sinusoids(amplitude, phase, x[:, :points], x[:, points:])


def evaluation_tasks(number: int, points: int) -> Tasks:
  """Returns the evaluation's tasks, with 101 evenly spaced query points."""
  draw = np.random.default_rng(_SEED).uniform
  drawn = (draw(0.1, 5.0, [number, 1, 1]), draw(0.0, math.pi, [number, 1, 1]),
           draw(-5.0, 5.0, [number, points, 1]), np.tile(np.linspace(-5, 5, 101)[:, np.newaxis],
                                                         [number, 1, 1]))
  return _sinusoids(*(tf.cast(each, keras.config.floatx()) for each in drawn))


def predict(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
  """Returns outputs at `x` `[n, k, 1]`, with kernels `[n, i, o]` and biases `[n, o]` per task."""
  *hidden, (kernel, bias) = zip(weights[::2], weights[1::2], strict=True)
  for w, b in hidden:
    x = tf.nn.relu(x @ w + b[:, tf.newaxis])
  return x @ kernel + bias[:, tf.newaxis]


def squared_errors(predicted: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """Returns the mean squared error of each task: `[n, k, 1], [n, k, 1] -> [n]`."""
  return tf.reduce_mean(tf.math.squared_difference(predicted, y), [1, 2])


def copies(network: keras.Model, number: int) -> list[tf.Tensor]:
  """Returns a copy of the network's weights for each of `number` tasks."""
  return [tf.stack([v.value] * number) for v in network.trainable_variables]


def descend(weights: list[tf.Tensor], tasks: Tasks, rate: float | tf.Tensor,
            first_order: bool = False) -> list[tf.Tensor]:
  """Takes one gradient descent step on each task's own weights (line 7 of algorithm 2)."""
  with tf.GradientTape() as tape:
    tape.watch(weights)
    # A task's weights appear only in its own term, so each gets its own task's gradient.
    loss = tf.reduce_sum(squared_errors(predict(weights, tasks.x), tasks.y))
  gradients = tape.gradient(loss, weights)
  constant = tf.stop_gradient if first_order else tf.identity
  return [w - rate * constant(g) for w, g in zip(weights, gradients, strict=True)]


@gin.configurable
class MAML(tf.Module):
  """One training step: an update of the initial weights, and one of the pretrained network.

  The optimizers are made in the gin scopes `initial` and `pretrained`.

  Args:
    optimizer: makes a Keras optimizer.
    points: number of points to learn a task from, the paper's K.
    sizes: units of the hidden layers.
    inner_rate: learning rate of gradient descent on a task, the paper's alpha.
    inner_steps: number of gradient descent steps on a task during training.
    first_order: whether to treat the inner gradient as a constant (section 5.2 of the paper).

  Raises:
    UsageError: a number is below 1, or the rate is not positive.
  """

  def __init__(self, optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               points: int = 10, sizes: Sequence[int] = (40, 40), inner_rate: float = 0.01,
               inner_steps: int = 1, first_order: bool = False):
    super().__init__()
    at_least_one("MAML", points=points, inner_steps=inner_steps)
    if not inner_rate > 0:
      raise replicator.UsageError(f"MAML.inner_rate = {inner_rate}: must be positive")
    self.points, self.first_order = points, first_order
    self.inner_rate, self.inner_steps = inner_rate, inner_steps
    self.initial, self.pretrained = (keras.Sequential([
        keras.Input([1]), *(keras.layers.Dense(size, "relu") for size in sizes),
        keras.layers.Dense(1)]) for _ in range(2))
    self.optimizers = replicator.wrap_optimizers(
        optimizer, initial=self.initial, pretrained=self.pretrained)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step; returns the mean squared errors of the two networks, float [].

    `loss/initial` is measured after the inner steps, `loss/pretrained` without any.
    """
    tasks = training_tasks(replicator.batch_size(), self.points)
    initial, pretrained = self.optimizers["initial"], self.optimizers["pretrained"]
    return {"loss/initial": initial.minimize(self._loss_after_inner_steps, tasks),
            "loss/pretrained": pretrained.minimize(self._loss_of_all_points, tasks)}

  def _loss_after_inner_steps(self, tasks: Tasks) -> tf.Tensor:
    """Returns the query loss of adapted weights, averaged over tasks (line 10 of algorithm 2)."""
    weights = copies(self.initial, tasks.x.shape[0])
    for _ in range(self.inner_steps):
      weights = descend(weights, tasks, self.inner_rate, self.first_order)
    return tf.reduce_mean(squared_errors(predict(weights, tasks.query_x), tasks.query_y))

  def _loss_of_all_points(self, tasks: Tasks) -> tf.Tensor:
    x, y = (tf.reshape(tf.concat(both, 1), [-1, 1]) for both in (tasks[::2], tasks[1::2]))
    predicted = tf.cast(self.pretrained(x), y.dtype)  # It may have half precision.
    return tf.reduce_mean(tf.math.squared_difference(predicted, y))


def evaluate(step: MAML, number: int) -> replicator.Evaluation:
  """Returns mean squared errors on new tasks after 0, 1, 5 and 10 gradient steps on each.

  For each number of steps, `pretrained_best` uses the best of four learning rates, chosen on these
  same tasks.
  """
  tasks, descend_once = evaluation_tasks(number, step.points), tf.function(descend, autograph=False)

  def fits_of(network: keras.Model, rate: float) -> list[tf.Tensor]:
    """Returns predictions at the queries after 0 to 10 steps, each `[n, q, 1]`."""
    weights, found = copies(network, number), []
    for _ in range(_SHOWN[-1] + 1):
      found.append(predict(weights, tasks.query_x))
      weights = descend_once(weights, tasks, tf.constant(rate, tasks.x.dtype))
    return found

  fits = np.array([[fits_of(network, rate) for network in (step.initial, step.pretrained)]
                   for rate in (step.inner_rate, *_RATES)], np.float64)
  errors = np.mean((fits - tasks.query_y.numpy()) ** 2, (3, 4, 5))  # [rates, networks, steps]
  best = np.fmin.reduce(errors[:, 1])  # If a rate is too large, the fit may be NaN.
  return replicator.Evaluation(
      {f"{name}_{count}": error[count] for count in _SHOWN for name, error in
       (("maml", errors[0, 0]), ("pretrained", errors[0, 1]), ("pretrained_best", best))},
      {"samples": _drawn(tasks, fits[0])},
      method=f"mean squared errors after gradient steps on {number} new tasks")


def _drawn(tasks: Tasks, fits: np.ndarray) -> np.ndarray:
  """Draws up to four tasks and both networks' fits, uint8 `[h, w, 3]`."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg  # Slow to import.
  from matplotlib.figure import Figure
  figure = Figure(figsize=(9, 4.5), dpi=80, layout="constrained")
  canvas = FigureCanvasAgg(figure)
  x = tasks.query_x[0, :, 0]
  panels = figure.subplots(2, min(4, len(tasks.x)), sharey=True, squeeze=False)
  for name, curves, row in zip(("MAML", "pretrained"), fits, panels, strict=True):
    row[0].set_ylabel(name)
    for task, axes in enumerate(row):
      axes.plot(x, tasks.query_y[task, :, 0], color="0.8", linewidth=4, label="task")
      for count, style in ((0, "C0:"), (1, "C1--"), (_SHOWN[-1], "C3-")):
        axes.plot(x, curves[count, task, :, 0], style, linewidth=1, label=f"step {count}")
      axes.plot(tasks.x[task, :, 0], tasks.y[task, :, 0], "k^", markersize=4, label="points")
  figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@gin.configurable
def train_maml(workdir: str, new_tasks: int = 500) -> None:
  """Trains MAML, or resumes the run in `workdir`; each evaluation has `new_tasks` tasks."""
  at_least_one("train_maml", new_tasks=new_tasks)
  replicator.train(MAML, evaluate=lambda step: evaluate(step, new_tasks), workdir=workdir)


if __name__ == "__main__":
  app.run(train_maml)
