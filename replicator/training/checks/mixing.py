"""Finds operations of a step that are not linear in its batch, so that dividing it changes results.

A linear function of the examples has the same mean over the parts of a batch as over the whole. In
the forward pass of a step, a tensor has a row for each example, or is a statistic of the examples,
such as their mean, or does not depend on them. Squaring a statistic, dividing by it, or combining
it with examples again is not linear. Neither is a maximum over examples, or a product of different
examples.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicator.errors import ENGINE, is_foreign
from replicator.step.collectives import collectives
from replicator.strategies.tracing import draws, graphs

import numpy as np
import tensorflow as tf

# The likely causes, `{part}` for a replica or a micro-batch.
_MEAN = ("a quotient of sums over examples, as in a mean over valid positions: {place} divides "
         "by the sum of one {part}; use replicator.mean(values, mask), or all_sum around both sums")
_OTHERS = ("examples that are combined with each other: {place} has only those of one {part}; get "
           "the rest with replicator.all_concat")
_STATISTIC = ("a statistic of the batch: {place} computes a nonlinear function of the examples of "
              "one {part}; average the statistic over the replicas first, with "
              "replicator.all_mean")

_MOVES = {"ExpandDims", "Pack", "Reshape", "Squeeze", "Tile", "Transpose"}  # Of axes.
_PARTS = {"Slice", "Split", "SplitV", "StridedSlice", "Unpack"}
_LINEAR = _MOVES | _PARTS | {
    "Add", "AddN", "AddV2", "BiasAdd", "BroadcastTo", "Cast", "ConcatV2", "Fill", "Identity",
    "IdentityN", "Mean", "Neg", "PreventGradient", "StopGradient", "Sub", "Sum"}
_PRODUCTS = {"BatchMatMulV2", "Einsum", "MatMul"}
_QUOTIENTS = {"DivNoNan", "RealDiv"}
_LINEAR_IN_ONE = _PRODUCTS | _QUOTIENTS | {"Mul", "MulNoNan"}
_REDUCTIONS = {"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"}
_ORDERS = {"Cumsum", "ReverseV2", "Roll"}
_ORDERS_LAST = {"LogSoftmax", "Softmax", "TopKV2"}
_SHAPES = {"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"}
_COLLECTIVES = os.path.dirname(collectives.__file__)
_OF_COLLECTIVES = {"Identity", "Reshape", "StridedSlice"}  # What collectives do on one replica.


@dataclasses.dataclass
class Suspects:
  """What an output of a step depends on."""

  mixes: dict[str, list[str]]  # The places of nonlinear operations, by the text of the cause.
  sums: list[str]  # The places of sums over examples.
  of_gradients: bool  # Whether it depends on gradients.


def suspects(graph: Any, batch: Sequence[tf.Tensor], outputs: Mapping[str, tf.Tensor], size: int
             ) -> dict[str, Suspects]:
  """Returns what each output of a step on one replica depends on, by name; "" is the whole step.

  `batch` has the tensors of the step's batch of `size` examples.
  """
  walk = _Walk(batch, size)
  operations = graph.get_operations()
  for operation in operations:
    if "gradient_tape" not in operation.name:
      walk.look_at(operation)
  needed_by = {name: _ancestors(x) for name, x in outputs.items() if isinstance(x, tf.Tensor)}
  return {name: walk.seen_in(needed) for name, needed in {
      **needed_by, "": {x.name for x in operations}}.items()}


def _ancestors(tensor: tf.Tensor) -> set[str]:
  """Returns the names of the operations that a tensor is computed from."""
  found: set[str] = set()
  waiting = [tensor.op]
  while waiting:
    operation = waiting.pop()
    if operation.name not in found:
      found.add(operation.name)
      waiting.extend(x.op for x in operation.inputs)
  return found


class _Walk:
  """A walk through operations in order, which tracks the examples of a batch."""

  def __init__(self, batch: Sequence[tf.Tensor], size: int):
    self._mixes: dict[str, tuple[str, str]] = {}  # Causes and places, by operation.
    self._sums: dict[str, str] = {}  # Places, by operation.
    self._size = size
    self._rows = {size}  # The lengths of axes of examples; multiples count as well.
    self._examples = {x.name for x in batch}
    self._statistics: set[str] = set()

  def look_at(self, operation: tf.Operation) -> None:
    """Records what an operation computes from examples and from statistics of them."""
    if draws.draws_numbers(operation):
      self._examples.update(x.name for x in operation.outputs)
      return
    examples = [x for x in operation.inputs if x.name in self._examples]
    statistics = [x for x in operation.inputs if x.name in self._statistics]
    if not (examples or statistics) or not operation.outputs or (
        operation.type in _SHAPES and all(x.shape.is_fully_defined() for x in examples)):
      return
    if operation.type in _PARTS and examples:  # Such as batches for several updates.
      self._rows.update(x.shape[0] for x in operation.outputs
                        if x.shape.rank and x.shape.rank == examples[0].shape.rank
                        and (x.shape[0] or 0) > 1 and self._size % x.shape[0] == 0)
    has_rows = bool(examples) and not _reduces_first_axis(operation) and (
        any(x.shape == examples[0].shape for x in operation.outputs)
        or any(map(self._has_rows, self._lengths(operation))))
    mix = self._mix(operation, examples, statistics, has_rows)
    is_sum = operation.type == "Sum" and bool(examples) and not has_rows
    if ((mix or not has_rows) and _maker(operation).startswith(ENGINE)) or (
        operation.type in _OF_COLLECTIVES and _maker(operation).startswith(_COLLECTIVES)):
      return  # It is computed over the global batch.
    if mix or is_sum:
      place = graphs.place(operation.traceback).removeprefix(" at ")
      if mix:
        self._mixes[operation.name] = mix, place
      if is_sum:
        self._sums[operation.name] = place
    (self._examples if has_rows else self._statistics).update(x.name for x in operation.outputs)

  def seen_in(self, operations: set[str]) -> Suspects:
    """Returns the findings about the operations with these names."""
    at: dict[str, str] = {}  # The cause at each place: the first, but a mean takes precedence.
    for name, (mix, place) in self._mixes.items():
      if name in operations and (mix == _MEAN or place not in at):
        at[place] = mix
    mixes: dict[str, list[str]] = {}
    for place, mix in at.items():
      mixes.setdefault(mix, []).append(place)
    sums = dict.fromkeys(place for name, place in self._sums.items() if name in operations)
    return Suspects(mixes, list(sums), any("gradient_tape" in name for name in operations))

  def _lengths(self, operation: tf.Operation) -> Iterator[int | None]:
    """Yields the lengths of axes that may hold examples: the first, or any if axes were moved."""
    for x in operation.outputs:
      axes = x.shape.as_list() if x.shape.rank is not None else [None]
      adds_axes = operation.type == "StridedSlice" and len(axes) > operation.inputs[0].shape.rank
      yield from axes if adds_axes or operation.type in _MOVES else axes[:1]

  def _has_rows(self, length: int | None) -> bool:
    return length is None or (length > 0 and any(length % rows == 0 for rows in self._rows))

  def _mix(self, operation: tf.Operation, examples: list, statistics: list, has_rows: bool) -> str:
    """Returns the cause if an operation is not linear, otherwise ''."""
    kind, inputs = operation.type, list(operation.inputs)
    divides = kind in _QUOTIENTS and inputs[1].name in self._statistics
    if (divides and not examples) or (kind == "Mean" and examples and not has_rows and (
        not examples[0].shape.is_fully_defined())):
      return _MEAN
    if kind in _ORDERS or (kind in _ORDERS_LAST and inputs[0].shape.rank == 1):
      return _OTHERS
    shape = operation.outputs[0].shape
    if kind in _PRODUCTS and len(examples) == 2 == shape.rank and all(map(self._has_rows, shape)):
      return _OTHERS
    if kind not in _PRODUCTS | _MOVES | {"ConcatV2"} and (
        {x.shape[:1] == [1] for x in examples} == {True, False}):  # All pairs of examples.
      return _OTHERS
    if examples and statistics:
      return _STATISTIC
    # A sum of products of examples, as in a Gram matrix, is a sum over examples.
    is_linear = kind in _LINEAR or (kind in _LINEAR_IN_ONE and len(statistics) < 2)
    return "" if is_linear or has_rows else _STATISTIC


def _reduces_first_axis(operation: tf.Operation) -> bool:
  if operation.type == "MatMul":
    return operation.get_attr("transpose_a")
  axes = tf.get_static_value(operation.inputs[1]) if operation.type in _REDUCTIONS else None
  return axes is not None and 0 in np.ravel(axes) % max(1, operation.inputs[0].shape.rank or 1)


def _maker(operation: tf.Operation) -> str:
  """Returns the file of the innermost user or package code that makes an operation."""
  files = [frame.filename for frame in operation.traceback
           if frame.filename.startswith(ENGINE) or not is_foreign(frame.filename)]
  return files[-1] if files else ""
