"""Rejects invalid steps when they are traced."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from replicator.errors import UsageError
from replicator.internals.compiled_functions import calls_of_functions
from replicator.internals.tensorflow_internals import may_be_recorded
from replicator.step import context
from replicator.step.replicated import copies_of
from replicator.strategies.tracing.graphs import operations, place

import tensorflow as tf

# State outside of variables, by the operations that change it.
_KEEP = "keep its contents in a replicated.variable that is an attribute of the step"
_HIDDEN = {"LookupTable(Insert|Remove|Import)": ("a lookup table", _KEEP),
           "Queue(Enqueue|Dequeue)": ("a queue", _KEEP),
           "IteratorGetNext": ("the iterator of a data set", "pass train the data set as inputs")}


def refuse_summaries(graph: Any, strategy: str) -> None:
  """Raises a UsageError if a graph that runs under XLA or on another machine has `tf.summary`."""
  for operation in [] if tf.executing_eagerly() else operations(graph):
    if re.fullmatch(r"Write\w*Summary", operation.type):
      raise UsageError(f"tf.summary{place(operation.traceback)}: a step cannot write summaries "
                       f"under XLA or the strategy '{strategy}'; return the number from the step, "
                       "or write it in a callback with run.writer")


def refuse_global_batch_sizes(graph: Any) -> None:
  """Raises a UsageError if the loss of a replica is divided by the global batch size."""
  for operation in [] if tf.executing_eagerly() else operations(graph):
    if operation.type == "DivNoNan" and any(
        frame.name == "compute_average_loss" for frame in operation.traceback):
      size = tf.get_static_value(operation.inputs[1])  # None if it is the replica's own size.
      rows = operation.inputs[0].op.inputs[0].shape[0]
      if size not in (None, rows):
        raise UsageError(f"tf.nn.compute_average_loss{place(operation.traceback)}: divides the sum "
                         f"over the {rows} examples of a replica by {size:.0f}; leave out "
                         "global_batch_size, or use tf.reduce_mean: a loss is the mean over the "
                         "batch that the step gets")


def refuse_hidden_state(graph: Any) -> None:
  """Raises a UsageError if a graph changes state that is not in variables."""
  for operation in operations(graph):
    for pattern, (what, remedy) in _HIDDEN.items():
      if re.match(pattern, operation.type):
        raise UsageError(f"the step changes {what}{place(operation.traceback)}, which checkpoints "
                         f"do not contain: a restart would lose it; {remedy}")


def own_weights_checked(optimizers: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
  """Checks that graphs called under a tape in the body use only this replica's weights.

  A `tf.function` is compiled for each replica, but `get_concrete_function` compiles for only one.
  """
  replica = tf.get_static_value(context.copy_id())  # None where all are traced as one.
  copies = [copies_of(v.value) for each in optimizers.values() for v in each.variables_updated]
  others = {id(copy.handle) for of_one in copies for number, copy in enumerate(of_one)
            if replica is not None and number != replica % len(of_one)}

  def check(compiled: Any) -> None:
    if may_be_recorded() and any(id(each) in others for each in compiled.captured_inputs):
      raise UsageError(f"'{compiled.graph.name}' was compiled by get_concrete_function, with the "
                       "weights of one replica, so the others would get no gradient; call the "
                       "tf.function itself, or use replicator.any_batch_size")

  return calls_of_functions(False, check)


@contextlib.contextmanager
def unaggregated_explained(strategy: str) -> Iterator[None]:
  """Explains the error for a variable that the strategy cannot update in a step.

  On several replicas, the variable needs an aggregation, which Keras does not set for the state of
  its layers.
  """
  try:
    yield
  except ValueError as error:
    if not str(error).startswith("You must specify an aggregation method"):
      raise
    raise UsageError(
        f"Replicator.strategy = '{strategy}': it cannot update this variable on several replicas; "
        "use replicator.GlobalBatchNorm, SpectralNorm, Dropout or random in place of Keras' own, "
        "and replicated.variable in place of tf.Variable"
        ).with_traceback(error.__traceback__) from None
