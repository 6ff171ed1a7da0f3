"""Convolutions whose gradient oneDNN gets wrong are found, with their lines, and no others."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.app import config
from replicator.tracing import convolutions
from tests.replicator.tracing.test_graphs import line_of as line_in_graphs


def line_of(words: str) -> str:
  return line_in_graphs(words, __file__)


def found(kernel: list[int], strides: int, dtype: tf.DType = tf.float32, backward: bool = True
          ) -> list[str]:
  """The unsafe convolutions in the graph of a convolution, inside a branch, and of its gradient."""
  @tf.function(autograph=False)
  def step(x, w):
    def convolved():
      return tf.reduce_sum(tf.nn.conv2d(x, w, strides, "VALID"))  # Convolved.

    with tf.GradientTape() as tape:
      tape.watch(w)
      y = tf.cond(tf.reduce_sum(x) > 0, convolved, lambda: tf.reduce_sum(w))
    return tape.gradient(y, w) if backward else y

  images = tf.TensorSpec([2, 8, 8, kernel[2]], dtype)
  return convolutions.unsafe(
      step.get_concrete_function(images, tf.TensorSpec(kernel, dtype)).graph)


def test_a_strided_1x1_kernel_with_few_input_channels_is_found():
  place = line_of("# Convolved.")
  assert found([1, 1, 15, 8], 2) == [f"a convolution with the kernel [1, 1, 15, 8]{place}"]
  assert found([1, 1, 4, 8], 3, tf.bfloat16) == [
      f"a convolution with the kernel [1, 1, 4, 8]{place}"]


def test_others_are_not(monkeypatch):
  assert found([1, 1, 16, 8], 2) == []  # Many channels.
  assert found([1, 1, 4, 8], 1) == []
  assert found([3, 3, 4, 8], 2) == []
  assert found([1, 1, 4, 8], 2, tf.float64) == []
  assert found([1, 1, 4, 8], 2, backward=False) == []
  monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
  assert found([1, 1, 4, 8], 2) == []


def computed() -> np.float32:
  print("step 0")  # As an evaluation before it begins.
  return np.float32(1)


class Strided(tf.Module):
  """A step with Python code, and an unsafe convolution, whose gradient it does not compute."""

  def __init__(self):
    super().__init__()
    self.kernel = tf.Variable(np.ones([1, 1, 1, 2], np.float32))

  def __call__(self) -> dict[str, tf.Tensor]:
    print("traced")
    with tf.GradientTape(persistent=True) as tape:
      y = tf.nn.conv2d(tf.ones([1, 4, 4, 1]), self.kernel, 2, "VALID")  # Strided.
      loss = tf.reduce_mean(y)
      loss *= tf.reshape(tf.numpy_function(computed, [], tf.float32), [])  # Python.
      unsafe = tf.cond(loss > 2, lambda: tape.gradient(loss, self.kernel),
                       lambda: tf.zeros_like(self.kernel))
    self.kernel.assign_sub(unsafe)
    return {"loss": loss}


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_training_warns_once_and_before_an_evaluation_or_a_step(evaluates, capsys, tmp_path):
  config.parse([], ["train.steps = 4", "train.log_every = 2", "train.checkpoint_every = 0",
                    f"train.eval_every = {2 if evaluates else 0}"])
  evaluate = lambda step: replicator.Evaluation({"one": 1.0})
  replicator.train(Strided, evaluate=evaluate, workdir=str(tmp_path))
  lines = capsys.readouterr().out.splitlines()
  warned = [i for i, line in enumerate(lines) if line.startswith("warning")]
  assert [lines[i] for i in warned] == [
      f"warning: tf.numpy_function{line_of('# Python.')}: what its Python code keeps is in no "
      "checkpoint; compute with TensorFlow, and keep it in a tf.Variable that is an attribute of "
      "the step",
      f"warning: a convolution with the kernel [1, 1, 1, 2]{line_of('# Strided.')}: on CPUs its "
      "gradient may be wrong or end the process, a fault of oneDNN's with a stride and fewer than "
      "16 input channels; pass it every second pixel, x[:, ::2, ::2] for strides=2, and use "
      "strides=1"]
  assert lines.count("traced") == 1
  assert warned[-1] < min(i for i, line in enumerate(lines) if line.startswith("step 0"))
