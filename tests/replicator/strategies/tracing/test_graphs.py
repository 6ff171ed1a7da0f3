"""Loops, the lines of assignments, and the convolutions whose gradient oneDNN gets wrong."""

import os
import pathlib

import replicator
from replicator.strategies.tracing import graphs
from tests.programs.processes import python
from tests.replicator.training.runs import train

import numpy as np
import pytest
import tensorflow as tf


def line_of(words: str, file: str = __file__) -> str:
  """Where the only line of this file that ends so is."""
  lines = pathlib.Path(file).read_text().splitlines()
  number, = (number for number, line in enumerate(lines, 1) if line.endswith(words))
  return f" at {os.path.relpath(file)}:{number}"


@pytest.fixture
def variables() -> dict[str, tf.Variable]:
  names = ("always", "sometimes", "again", "never", "row", "slice")
  return {name: tf.Variable([0.0] if name in ("row", "slice") else 0.0) for name in names}


def test_an_assignment_is_placed_in_a_branch_or_loop_too(variables):
  @tf.function(autograph=False)
  def step(x):
    def sometimes():
      read = variables["never"] + variables["sometimes"]
      return read + variables["sometimes"].assign(x)  # Sometimes.

    def again(count):
      variables["again"].assign_add(variables["never"] + x)  # Again.
      return count + 1
    variables["always"].assign(x)  # Always.
    variables["row"].scatter_nd_add([[0]], [x])  # Row.
    variables["slice"][:1].assign([x])  # Slice.
    tf.cond(x > 0, sometimes, lambda: x)
    return tf.while_loop(lambda count: count < 2, again, [0])

  graph = step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
  found = {name: list(graphs.assignments(graph, variable)) for name, variable in variables.items()}
  assert found.pop("never") == []
  assert found == {name: [line_of(f"# {name.capitalize()}.")] for name in found}


def test_calls_of_python_are_named_once_with_their_lines():
  @tf.function(autograph=False)
  def step(x):
    for _ in range(2):
      x += tf.numpy_function(lambda: 1.0, [], tf.float64)  # NumPy.
    return tf.cond(x > 0, lambda: tf.py_function(lambda: 1.0, [], tf.float64),  # Python.
                   lambda: x)

  graph = step.get_concrete_function(tf.TensorSpec([], tf.float64)).graph
  assert sorted(graphs.python_calls(graph)) == [
      f"tf.numpy_function{line_of('# NumPy.')}", f"tf.py_function{line_of('# Python.')}"]


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
  return graphs.unsafe_convolutions(
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
      loss *= tf.reshape(tf.numpy_function(computed, [], tf.float32), [])  # Computed.
      unsafe = tf.cond(loss > 2, lambda: tape.gradient(loss, self.kernel),
                       lambda: tf.zeros_like(self.kernel))
    self.kernel.assign_sub(unsafe)
    return {"loss": loss}


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_training_warns_once_and_before_an_evaluation_or_a_step(evaluates, capsys, tmp_path):
  evaluate = lambda step: replicator.Evaluation({"one": 1.0})
  train(tmp_path, "train.steps = 4", "train.log_every = 2",
        f"train.eval_every = {2 if evaluates else 0}", step=Strided, evaluate=evaluate)
  lines = capsys.readouterr().out.splitlines()
  warned = [i for i, line in enumerate(lines) if line.startswith("warning")]
  assert [lines[i] for i in warned] == [
      f"warning: tf.numpy_function{line_of('# Computed.')}: checkpoints do not contain the state "
      "of its Python code; compute with TensorFlow, and keep state in a tf.Variable that is an "
      "attribute of the step",
      f"warning: a convolution with the kernel [1, 1, 1, 2]{line_of('# Strided.')}: on CPUs its "
      "gradient may be wrong or crash the process, a oneDNN bug with a stride and fewer than "
      "16 input channels; pass it every second pixel, x[:, ::2, ::2] for strides=2, and use "
      "strides=1"]
  assert lines.count("traced") == 1
  assert warned[-1] < min(i for i, line in enumerate(lines) if line.startswith("step 0"))


@pytest.mark.parametrize("function, has_loop", [
    (lambda x: x + 1, False),
    (lambda x: tf.map_fn(lambda row: row + 1, x), True),
    (lambda x: tf.cond(x[0] > 0, lambda: tf.scan(tf.add, x), lambda: x), True)],
    ids=["none", "map", "in a branch"])
def test_loops_are_found(function, has_loop):
  graph = tf.function(function).get_concrete_function(tf.TensorSpec([2])).graph
  assert graphs.has_loop(graph) == has_loop


TWO_BRANCHES = """
from replicator import Replicator
import keras, numpy as np, tensorflow as tf
dense = [keras.layers.Dense(8) for _ in range(2)]
for layer in dense:
  layer.build((None, 8))
x = np.ones([4, 8], np.float32)
print(Replicator().run(lambda x: tf.reduce_sum(tf.nn.{activation}(dense[0](x) + dense[1](x))), x))
"""


@pytest.mark.parametrize("activation", [
    "relu", pytest.param("elu", marks=pytest.mark.slow)])
def test_tensorflow_does_not_fail_to_optimize_a_sum_of_dense_layers(activation):
  assert " failed: " not in python("-c", TWO_BRANCHES.format(activation=activation)).stderr
