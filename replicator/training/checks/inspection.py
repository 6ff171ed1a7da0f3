"""Finds operations in a step whose results may depend on the number of replicas."""

import inspect
import re
import traceback
from collections.abc import Sequence
from typing import Any

from replicator.errors import ENGINE, is_foreign
from replicator.internals.keras_internals import global_seed_state, layers_in
from replicator.step import context
from replicator.step.hooks import Hook
from replicator.step.layers import dropout
from replicator.step.layers.batch_norm import GlobalBatchNorm
from replicator.step.variables import held_by, variables_of
from replicator.strategies.tracing import draws, graphs
from replicator.training.checks import mixing

import keras
import tensorflow as tf
import tree

_NOT_LINEAR = {"Abs", "L2Loss", "Maximum", "Minimum", "Rsqrt", "Select", "SelectV2", "Sign", "Sqrt",
               "Square", "Tanh"}
_MOST_CHANGES = 2000  # Operations between tape and optimizer; more mean a hand-written gradient.


class Evidence:
  """The suspicious operations in a step traced on one replica, as text with their places.

  It holds no reference to the step, so it can be passed between processes.
  """

  def __init__(self, step: Any):
    self.draws: list[str] = []  # Random draws that are not from `replicator.random`.
    self.stateful_draws: list[str] = []  # Draws whose state is not in checkpoints.
    self.constant_draws: list[str] = []  # Draws from Python's and NumPy's generators.
    self.python_code: list[str] = []  # Calls of Python functions by the compiled step.
    self.clips: list[str] = []  # Clipping or other nonlinear operations on gradients.
    self.batch_size = 0  # The examples of a step over all replicas.
    self.suspects: dict[str, mixing.Suspects] = {}  # By the output of the step; all under "".
    self.microbatched = False  # Whether it divides its batch by `microbatch.n`.
    self._own_draws: list[tuple[str, int]] = []  # Draws of `replicator.random`, with their rows.
    self._joined: dict[int, str] = {}  # Where batches are joined along axis 0, by total rows.
    layers = [layer for _, outermost in held_by(step, (keras.layers.Layer,))
              for layer in layers_in(outermost)]
    self.has_global_batch_norm = any(isinstance(layer, GlobalBatchNorm) for layer in layers)
    self._drawing = {  # The classes of layers that draw with Keras, by file.
        inspect.getfile(type(layer)): type(layer).__name__ for layer in layers
        if any(isinstance(x, keras.random.SeedGenerator) for x in vars(layer).values())}
    variables = variables_of(step)
    self.labels = {path: v.name.removesuffix(":0") for path, v in variables.items()
                   if isinstance(v, tf.Variable)}  # Keras' names of the variables, by path.
    paths = {id(v): path for path, v in variables.items()}
    self.local_batch_norms = [  # Keras' own: their names, and the paths of their moving means.
        (layer.path, paths.get(id(layer.moving_mean.value), "")) for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized]

  def look_at_draw(self, stream: str, rows: int) -> None:
    """Records a draw of `replicator.random`; called where it is made."""
    frames = traceback.extract_stack()
    is_dropout = any(frame.filename == dropout.__file__ for frame in frames)
    what = "a replicator.Dropout layer draws" if is_dropout else f"random stream '{stream}' draws"
    _add(self._own_draws, (f"{what}{graphs.place(frames)}", rows))

  def draws_for_joined_batches(self) -> list[tuple[str, str]]:
    """Returns draws with as many rows as batches joined along axis 0, and where they are joined."""
    return [(draw, self._joined[rows]) for draw, rows in self._own_draws if rows in self._joined]

  def look_at_graph(self, graph: Any) -> None:
    """Collects random draws and Python calls from a step's graph and the graphs it calls."""
    for call in graphs.python_calls(graph):
      _add(self.python_code, call)
    for operation, frames in draws.foreign(graph):
      draw = f"{self._kind_of_draw(frames)}{graphs.place(frames)}"
      _add(self.draws, draw)
      if draws.is_stateful(operation):
        _add(self.stateful_draws, draw)
    keras_global = global_seed_state()
    if keras_global is not None and (place := graphs.first_use(graph, keras_global.value)):
      _add(self.stateful_draws, f"a keras.random draw{place}")
    for operation in graphs.operations(graph):
      if operation.type == "ConcatV2" and "gradient_tape" not in operation.name:
        self._look_at_concat(operation)

  def _look_at_concat(self, operation: tf.Operation) -> None:
    """Records where the user's own code joins tensors along axis 0."""
    own = [frame for frame in operation.traceback if not is_foreign(frame.filename)]
    shape = operation.outputs[0].shape
    if (shape.rank and shape[0] and tf.get_static_value(operation.inputs[-1]) == 0
        and own and not own[-1].filename.startswith(ENGINE)):
      self._joined.setdefault(shape[0], graphs.place(operation.traceback).removeprefix(" at "))

  def _kind_of_draw(self, frames: Sequence) -> str:
    for frame in reversed(frames):
      if frame.filename in self._drawing:
        return f"a Keras {self._drawing[frame.filename]} layer"
    return "a keras.random draw" if draws.is_of_keras(frames) else "a tf.random draw"

  def look_at_gradients(self, gradients: list[tf.Tensor]) -> None:
    """Records clipping and nonlinear operations on gradients between the tape and the optimizer."""
    between: dict[str, tf.Operation] = {}
    pending, are_of_tape = list(gradients), False
    while pending and len(between) <= _MOST_CHANGES:
      operation = pending.pop().op
      if "gradient_tape" in operation.name or operation.type.endswith("While"):
        are_of_tape = True
      elif operation.name not in between:
        between[operation.name] = operation
        pending.extend(operation.inputs)
    if not are_of_tape or pending:  # The gradients are computed by hand.
      return
    for name, operation in between.items():
      clip = re.search(r"clip_by_(global_norm|average_norm|norm|value)", name)
      if clip or operation.type in _NOT_LINEAR:
        what = f"tf.{clip[0]}" if clip else operation.type
        _add(self.clips, f"{what}{graphs.place(operation.traceback)}")


class Inspector(Hook):
  """A hook that collects `evidence` about a `module` that runs on one replica."""

  def __init__(self, module: Any):
    self.evidence = Evidence(module)
    self._traced: list[tuple] = []  # Graphs, with the gradients, the batch and the outputs in each.

  def drawn(self, stream: str, rows: int) -> None:
    """Records a draw of `replicator.random`."""
    self.evidence.look_at_draw(stream, rows)

  def updating(self, optimizer: Any, variables: list, local: list[tf.Tensor],
               averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Keeps the gradients of an update."""
    if not (tf.executing_eagerly() or context.in_inner_graph()):
      context.current().kept.setdefault(self, []).append(local)
    return averaged

  def ended(self, batch: tuple, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Keeps the graph of the step, once for replicas that share it."""
    graph, size = tf.compat.v1.get_default_graph(), context.run.examples
    self.evidence.batch_size = size
    if context.num_replicas() == 1 and not (
        tf.executing_eagerly() or any(graph is each for each, *_ in self._traced)):
      gradients = context.current().kept.get(self, [])
      self._traced.append((graph, gradients, tree.flatten(batch), outputs, size))
    return {}

  def look(self) -> None:
    """Inspects the traced graphs, which takes time."""
    for graph, gradients, *others in self._traced:
      self.evidence.look_at_graph(graph)
      for of_update in gradients:
        self.evidence.look_at_gradients(of_update)
      self.evidence.suspects = mixing.suspects(graph, *others)


def _add(found: list, item: Any) -> None:
  if item not in found:
    found.append(item)
