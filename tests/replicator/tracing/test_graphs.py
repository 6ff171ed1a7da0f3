"""The lines of a step's operations are found, also in the branches that it calls."""

import os
import pathlib

import pytest
import tensorflow as tf

from replicator.tracing import graphs


def line_of(words: str, file: str = __file__) -> str:
  """Where the only line of a file that ends so is."""
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
  found = {name: graphs.assigned_at(graph, variable) for name, variable in variables.items()}
  assert found == {"always": line_of("# Always."), "sometimes": line_of("# Sometimes."),
                   "again": line_of("# Again."), "never": "", "row": line_of("# Row."),
                   "slice": line_of("# Slice.")}


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
