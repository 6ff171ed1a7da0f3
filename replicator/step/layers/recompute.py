"""Recomputes activations in the backward pass, which trades time for memory."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.internals import keras_internals, tensorflow_internals
from replicator.step import context
from replicator.step.nest import Nest
from replicator.step.replicated import copies_of

import keras
import tensorflow as tf
import tree


def recompute_grad(function: Callable[..., Nest]) -> Callable[..., Nest]:
  """Wraps a function so that its gradient recomputes its activations instead of storing them.

  A network then keeps only the inputs of such functions, plus the activations of the one being
  differentiated. Each gradient takes one more forward pass (Chen et al. 2016, arXiv:1604.06174).
  Divide a deep network into a few blocks:

      for block in self.blocks:
        x = replicator.recompute_grad(block)(x, training=True)

  Outputs, gradients of any order and state are those of `function` itself. The second pass uses the
  same random numbers and the same values of Keras variables, such as weights and moving statistics,
  as the first, and its assignments are dropped. A `tf.Variable` must not change between the passes,
  and a tape opened inside the function gets no gradients. Collectives run in both passes.
  `tf.recompute_grad` and `keras.RematScope` would draw random numbers, run power iterations and
  update statistics twice.

  Args:
    function: a layer, a network or another function that returns a nest of tensors. Its layers must
      be built. It must take all tensors that have gradients as arguments, in any nest, and may use
      variables from anywhere.

  Raises:
    UsageError: when the function is called, if it builds layers, adds losses, is called on symbolic
      Keras tensors, or in a compiled step uses a tensor with a gradient that is not an argument.
      When its gradient is taken in a compiled step, if it assigns a `tf.Variable` or draws with
      `tf.random`.
  """
  def recomputed(*args: Nest, **kwargs: Nest) -> Nest:
    return _Call(function, args, kwargs).outputs()
  return recomputed


class _Call:
  """One call of a recomputed function."""

  def __init__(self, function: Callable[..., Nest], args: tuple, kwargs: dict):
    self._function = function
    self._name = getattr(function, "name", getattr(function, "__qualname__", "the function"))
    # Values that an enclosing scope replaces are inputs too, such as the kernel of SpectralNorm.
    self._inputs = [args, kwargs, keras_internals.values_of_scope()]
    self._results: Nest = None  # What the function returned in the first pass.
    # The values before the first pass of the Keras variables that it read or assigned, by id, and
    # the ids of those with gradients.
    self._before: dict[int, tf.Tensor] = {}
    self._weights: list[int] = []
    self._again = _bookmark()
    if any(isinstance(x, keras.KerasTensor) for x in tree.flatten(self._inputs)):
      self._refuse("is called on a symbolic Keras tensor; call it in the step, or in the `call` of "
                   "your own layer or model")

  def outputs(self) -> Nest:
    """Runs the first pass."""
    inputs = [tf.convert_to_tensor(x) for x in tree.flatten(self._inputs) if _is_input(x)]
    variables = self._first_pass(inputs)
    weights = [self._before[i] for i in self._weights]
    outputs = iter(tensorflow_internals.with_gradient(
        _floating(self._results), [*inputs, *weights, *map(tf.convert_to_tensor, variables)],
        lambda *dy: self._second_pass(_after(dy, inputs), [*weights, *variables], dy)))
    return tree.map_structure(lambda x: next(outputs) if _is_floating(x) else x, self._results)

  def _first_pass(self, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Variable]:
    """Computes the results; returns the trainable variables they depend on, except Keras' own."""
    with (tensorflow_internals.unrecorded(), tensorflow_internals.variables_read() as variables,
          tf.name_scope("first_pass") as name):
      self._results, scope = self._run(inputs)
    self._check_first_pass(_operations(name), inputs, scope)
    # An update may come before the gradient: the second pass must not read new weights.
    held = {i: keras_internals.own_value(v) for i, v in scope.read.items()}
    assigned = {id(v): tf.identity(v.value) for v in scope.assigned}
    self._before = {**{i: tf.convert_to_tensor(v) for i, v in held.items()}, **assigned}
    self._weights = [i for i, v in held.items()
                     if v.trainable and v.dtype.is_floating and i not in assigned]
    scope.assign()
    of_keras = {id(copy.handle) for v in held.values() for copy in copies_of(v)}
    return [v for v in variables() if id(v.handle) not in of_keras]

  def _second_pass(self, inputs: list[tf.Tensor], variables: Sequence[tf.Tensor | tf.Variable],
                   dy: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    """Returns the gradients for the inputs (None if not floating-point) and the variables."""
    with tf.GradientTape() as tape, self._again(), tf.name_scope("second_pass") as name:
      tape.watch([*_floating(inputs), *variables])
      results, _ = self._run(inputs)
    self._check_second_pass(_operations(name))
    gradients = tape.gradient(_floating(results), [*_floating(inputs), *variables],
                              output_gradients=list(dy))
    # Wait for the variables' gradients: until they are computed, the activations are kept.
    with tf.control_dependencies([x for x in tree.flatten(gradients) if tf.is_tensor(x)]):
      of_inputs = iter([x if x is None else tf.identity(x)
                        for x in gradients[:len(_floating(inputs))]])
    return [next(of_inputs) if _is_floating(x) else None for x in inputs] + (
        gradients[len(_floating(inputs)):])

  def _run(self, inputs: Sequence[tf.Tensor]) -> tuple[Nest, keras_internals.VariableScope]:
    """Calls the function in a scope with the state before the first pass."""
    tensors = iter(inputs)
    args, kwargs, replaced = tree.map_structure(
        lambda x: next(tensors) if _is_input(x) else x, self._inputs)
    with keras_internals.VariableScope({**self._before, **replaced}) as scope:
      return self._function(*args, **kwargs), scope

  # ---- Checks for what would silently give wrong results ----------------------------------------

  def _refuse(self, why: str) -> None:
    raise UsageError(f"recompute_grad: '{self._name}' {why}")

  def _check_first_pass(self, operations: list[tf.Operation], inputs: Sequence[tf.Tensor],
                        scope: keras_internals.VariableScope) -> None:
    if scope.losses:
      self._refuse("adds losses, by add_loss or an activity regularizer, which would have no "
                   "gradient; return them as outputs")
    known = {x.name for op in operations for x in op.outputs}
    known |= {x.name for x in inputs} if operations else set()
    for x in _floating([x for op in operations for x in op.inputs]):
      if x.name not in known and tensorflow_internals.is_recorded(x):
        self._refuse(f"uses a tensor {x.shape} that has a gradient ({x.name}); pass it as an "
                     "argument")

  def _check_second_pass(self, operations: list[tf.Operation]) -> None:
    for op in operations:
      if op.type.startswith(("Assign", "ResourceScatter")):
        self._refuse(f"assigns a tf.Variable ({op.name}), which would happen twice; assign it "
                     "outside of the function, or make it a keras.Variable")
      if op.type.startswith("Rng") or (op.op_def.is_stateful and "seed" in op.node_def.attr):
        self._refuse(f"draws with tf.random ({op.type}), which would draw different numbers for "
                     "the gradient; use replicator.random")


def _bookmark() -> Callable[[], contextlib.AbstractContextManager[None]]:
  """Marks this point in the step; returns a context manager that goes back to it.

  In its body, streams repeat what they drew after the mark, and hooks are not called.
  """
  step = context.current()
  draws, part = step.draws.copy(), _copy(step.microbatch)

  @contextlib.contextmanager
  def again() -> Iterator[None]:
    here = step.draws, step.microbatch, step.is_recomputing
    step.draws, step.microbatch, step.is_recomputing = draws.copy(), _copy(part), True
    try:
      yield
    finally:
      step.draws, step.microbatch, step.is_recomputing = here

  return again


def _copy(part: context.Microbatch | None) -> context.Microbatch | None:
  return part and dataclasses.replace(part, first_values=list(part.first_values),
                                      moves=part.moves.copy())


def _is_input(x: Any) -> bool:
  return tf.is_tensor(x) and not isinstance(x, tf.Variable | keras.Variable)


def _is_floating(x: Any) -> bool:
  return tf.is_tensor(x) and x.dtype.is_floating


def _floating(values: Nest) -> list[tf.Tensor]:
  return [x for x in tree.flatten(values) if _is_floating(x)]


def _operations(scope: str) -> list[tf.Operation]:
  """Returns the operations of a name scope; other replicas' threads may add some in between."""
  operations = tf.compat.v1.get_default_graph().get_operations()
  return [op for op in operations if op.name.startswith(scope)]


def _after(dy: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Returns the inputs once `dy` is computed and activations of later functions are freed.

  If the two passes could run at the same time, TensorFlow would merge them into one that keeps its
  activations.
  """
  if not context.current().xla:
    with tf.control_dependencies(dy):
      return [tf.identity(x) for x in inputs]
  # XLA ignores control dependencies.
  is_nan = tf.reduce_any(tf.math.is_nan(tf.reshape(dy[0], [-1])[:1]))
  return [tf.where(is_nan, tf.zeros_like(x), x) for x in inputs]
