"""Words for the command line of an experiment, and experiments without a training."""

from collections.abc import Callable

import replicator

import gin
import tensorflow as tf

SETTING = ["train.steps = 10", "train.global_batch_size = 8", "train.log_every = 5",
           "train.eval_every = 5", "train.precision = 'float64'"]


def flags(*bindings: str) -> list[str]:
  return [f"--gin_param={binding}" for binding in [*SETTING, *bindings]]


def nothing(workdir: str) -> None:
  """An experiment that does nothing."""


def fails_with(error: BaseException):
  def main(workdir):
    raise error
  return main


@gin.configurable
def small_step(scale: float = 1.0, optimizer: Callable[[], object] | None = None,
               device: int = 0, after: Callable = tf.identity, note: str = "") -> Callable:
  """Makes a step without networks."""
  rate = float(optimizer().learning_rate) if optimizer else 1.0

  def step() -> dict[str, tf.Tensor]:
    with replicator.logical_device(device):
      return {"loss": after(tf.constant(scale * rate))}

  return step


def small(workdir: str) -> None:
  """Trains the step."""
  replicator.train(small_step, workdir=workdir)
