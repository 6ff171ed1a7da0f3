"""The gradients of self-supervised losses on several replicas, against their closed forms.

  python -m benchmarks.self_supervision_gradients

A batch is split across 1, 2 and 4 replicas (logical CPUs, float64). Each computes the gradient of
its loss with respect to its own projections, and these are averaged as by the optimizer. The closed
form is for the whole batch, in NumPy. For each loss and number of replicas, it prints the relative
error of

  this project   the losses of `models.vision.self_supervision`
  no gradient    the same losses with collectives that pass no gradient to other replicas, like an
                 in-place all-reduce and a plain all-gather: lightly-ai/lightly#1977 and #1920
  own examples   each replica compares only its own examples: nothing is gathered

For the last two, it also prints the norm of the gradient relative to the true one, and the cosine
between them. DINO takes a second step, since its center is 0 in the first. The exit status is 1 if
an error of this project is above 1e-12.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import replicator
from models.vision.self_supervision import losses

import keras
import numpy as np
import tensorflow as tf
from absl import app
from scipy.special import softmax

SIZE, FEATURES = 16, 6
REPLICAS = (4, 2, 1)  # The first sets how many logical CPUs there are.
ALLOWED = 1e-12

Formula = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def main(arguments: list[str]) -> None:
  """Prints the table."""
  del arguments
  keras.config.set_floatx("float64")
  print("| loss | replicas | this project: error | no gradient: error | norm | cosine "
        "| own examples: error | norm | cosine |\n|" + " --- |" * 9)
  worst = 0.0
  views, targets = projections()
  for make, formula in FORMULAS.items():
    _, expected = formula(views, targets)
    rows = []
    for replicas in REPLICAS:
      found = [gradient(make, views, targets, replicas, context)[1]
               for context in (contextlib.nullcontext, without_gradient, own_examples)]
      errors = [float(np.linalg.norm(g - expected) / np.linalg.norm(expected)) for g in found]
      worst = max(worst, errors[0])
      cells = [f"{errors[0]:.1e}"]
      for error, g in zip(errors[1:], found[1:], strict=True):
        norm = np.linalg.norm(g) / np.linalg.norm(expected)
        cosine = np.sum(g * expected) / np.linalg.norm(g) / np.linalg.norm(expected)
        cells += [f"{error:.1e}" if error < 1e-3 else f"{error:.2f}", f"{norm:.3f}",
                  f"{cosine:.3f}"]
      rows.append(f"| {make.__name__} | {replicas} | {' | '.join(cells)} |")
    print("\n".join(reversed(rows)))
  sys.exit(worst > ALLOWED)


def projections() -> np.ndarray:
  """Returns projections of two similar views, and a teacher's projections: `[2, 2, n, d]`."""
  numbers = np.random.default_rng(0)
  images = numbers.normal(size=[SIZE, FEATURES])
  return 0.7 * (images + 0.7 * numbers.normal(size=[2, 2, SIZE, FEATURES]))


def gradient(make: Callable, views: np.ndarray, targets: np.ndarray, replicas: int,
             collectives: Callable = contextlib.nullcontext) -> tuple[float, np.ndarray]:
  """Returns the mean loss of the replicas, and its gradient by the views, `[2, n, d]`.

  Args:
    make: makes the loss.
    views: the projections of both views, `[2, n, d]`.
    targets: the teacher's projections; losses without a teacher ignore them.
    replicas: the number of replicas that share the n images.
    collectives: makes a context that replaces the collectives, from the number of replicas.
  """
  runner = replicator.Replicator("mirrored", logical_cpus=replicas)
  with runner.scope():
    loss = losses.DINO(FEATURES) if make is losses.DINO else make()

  def step(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    pair = tf.unstack(batch["views"], axis=1)
    with tf.GradientTape() as tape:
      tape.watch(pair)
      value = loss(pair, tf.unstack(batch["targets"], axis=1))
    return value, tape.gradient(value, pair)

  batch = {"views": views.swapaxes(0, 1), "targets": targets.swapaxes(0, 1)}
  with collectives(replicas):  # Replicas are traced in threads, which must not enter it again.
    for _ in range(2 if make is losses.DINO else 1):
      results = runner.run(step, batch)
  values, gradients = zip(*results, strict=True)
  # The optimizer takes the mean over the replicas, of which each has its own examples.
  return float(np.mean(values)), np.concatenate(gradients, axis=1) / replicas


# ---- What other collectives give -----------------------------------------------------------------


@contextlib.contextmanager
def without_gradient(replicas: int) -> Iterator[None]:
  """Collectives with the same values, whose gradient stays on the replica."""
  gather, add, mean = replicator.all_concat, replicator.all_sum, replicator.all_mean

  def in_place(own: tf.Tensor, everywhere: tf.Tensor) -> tf.Tensor:
    return own + tf.stop_gradient(everywhere - own)

  def concat(pair: list[tf.Tensor]) -> list[tf.Tensor]:
    n = pair[0].shape[0]
    places = tf.one_hot(replicator.replica_id() * n + tf.range(n),
                        n * replicas, dtype=pair[0].dtype, axis=0)
    return [in_place(tf.matmul(places, x), all_x)
            for x, all_x in zip(pair, gather(pair), strict=True)]

  def summed(values: list[tf.Tensor]) -> list[tf.Tensor]:
    return list(map(in_place, values, add(values)))

  def averaged(values: tf.Tensor | list[tf.Tensor]) -> tf.Tensor | list[tf.Tensor]:
    return tf.nest.map_structure(
        lambda x, y: in_place(x / replicas, y), values, mean(values))

  with mock.patch.multiple(replicator, all_concat=concat, all_sum=summed, all_mean=averaged):
    yield


@contextlib.contextmanager
def own_examples(replicas: int) -> Iterator[None]:
  """Collectives that exchange nothing between replicas."""
  groups = [[replica] for replica in range(replicas)]
  normalized = losses.batch_normalized
  with mock.patch.multiple(
      replicator, all_concat=list, all_sum=list, all_mean=lambda values: values,
      num_replicas=lambda: 1, replica_id=lambda: 0), mock.patch.object(
          losses, "batch_normalized", lambda *arguments: normalized(*arguments, groups)):
    yield


# ---- The closed forms ----------------------------------------------------------------------------


def unit(x: np.ndarray) -> np.ndarray:
  """Rows of length 1."""
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def before_unit(x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
  """Converts a gradient by `unit(x)` to the gradient by x."""
  u = unit(x)
  return (gradient - u * (gradient * u).sum(1, keepdims=True)) / np.linalg.norm(
      x, axis=1, keepdims=True)


def simclr(views: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
  """arXiv:2002.05709, equation 1: the loss and its gradient by the views."""
  del targets
  count = 2 * SIZE
  x = np.concatenate(views)
  scores = unit(x) @ unit(x).T / 0.5
  np.fill_diagonal(scores, -np.inf)
  found = softmax(scores, axis=1)
  wanted = np.roll(np.eye(count), SIZE, axis=1)
  by_scores = (found - wanted) / count
  by_unit = (by_scores + by_scores.T) @ unit(x) / 0.5
  return float(-np.log(found[wanted > 0]).mean()), before_unit(x, by_unit).reshape(views.shape)


def byol(views: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
  """arXiv:2006.07733, equation 2, for both views."""
  others = [unit(target) for target in reversed(targets)]
  loss = sum(((unit(view) - other) ** 2).sum(1).mean()
             for view, other in zip(views, others, strict=True))
  return float(loss), np.stack([before_unit(view, -2 * other / SIZE)
                                for view, other in zip(views, others, strict=True)])


def barlow_twins(views: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
  """arXiv:2103.03230, equation 1, of features that are normalized over the batch."""
  del targets
  deviations = np.sqrt(views.var(1, keepdims=True) + 1e-5)
  a, b = normalized = (views - views.mean(1, keepdims=True)) / deviations
  c = a.T @ b / SIZE
  weights = 0.005 + 0.995 * np.eye(FEATURES)
  difference = c - np.eye(FEATURES)
  by_c = 2 * weights * difference / SIZE
  by_normalized = np.stack([b @ by_c.T, a @ by_c])
  return float((weights * difference ** 2).sum()), (
      by_normalized - by_normalized.mean(1, keepdims=True)
      - normalized * (by_normalized * normalized).mean(1, keepdims=True)) / deviations


def vicreg(views: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
  """arXiv:2105.04906, algorithm 1."""
  del targets
  first, second = views
  loss = 25 * ((first - second) ** 2).mean()
  gradients = 50 * np.stack([first - second, second - first]) / first.size
  for view, total in zip(views, gradients, strict=True):
    centered = view - view.mean(0)
    c = centered.T @ centered / (SIZE - 1)
    deviations = np.sqrt(np.diag(c) + 1e-4)
    apart = c - np.diag(np.diag(c))
    loss += 25 * np.maximum(0, 1 - deviations).mean() + (apart ** 2).sum() / FEATURES
    by_c = 2 * apart / FEATURES - np.diag(25 * (deviations < 1) / (2 * FEATURES * deviations))
    total += 2 * centered @ by_c / (SIZE - 1)
  return float(loss), gradients


def dino(views: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
  """arXiv:2104.14294, algorithm 1, in the second step with these projections."""
  center = 0.1 * targets.mean((0, 1))
  loss, gradients = 0.0, []
  for view, target in zip(views, reversed(targets), strict=True):
    wanted = softmax((target - center) / 0.04, axis=1)
    found = softmax(view / 0.1, axis=1)
    loss -= (wanted * np.log(found)).sum(1).mean() / 2
    gradients.append((found - wanted) / 0.1 / (2 * SIZE))
  return float(loss), np.stack(gradients)


FORMULAS: dict[Callable, Formula] = {
    losses.SimCLR: simclr, losses.BYOL: byol, losses.BarlowTwins: barlow_twins,
    losses.VICReg: vicreg, losses.DINO: dino}
"""The closed form of each loss and of its gradient by the views."""


if __name__ == "__main__":
  app.run(main)
