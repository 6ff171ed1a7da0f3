"""Finds variables that a step seems to train but that its graph never assigns."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from replicator.internals.tensorflow_internals import age
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by
from replicator.strategies.tracing import graphs

import keras

_NAMED = 4  # The most names to list; the rest are counted.


def warnings(graph: Any, step: Callable, optimizers: Mapping[str, Optimizer],
             unfrozen: Collection[int], updated: Collection[int]) -> Iterator[str]:
  """Yields warnings about variables that do not train in the graph of a step.

  `optimizers` are those of the step, by path. `unfrozen` has the ids of variables that were frozen
  at first and are trainable now. `updated` has the ids of variables that an update has a gradient
  for, which an optimizer may still leave unchanged.
  """
  late = list(_late(step, list(optimizers.values()), unfrozen))
  counts = [optimizer.keras_optimizer.iterations for optimizer in optimizers.values()]
  owned = [v for optimizer in optimizers.values() for v in optimizer.variables_updated]
  assigned = {id(v) for v, _ in graphs.writes(graph, [*counts, *owned, *late])}
  # A network that the step never uses, such as an optional head, needs no warning.
  missed = graphs.read(graph, [*owned, *late]) - assigned
  for (path, optimizer), count in zip(optimizers.items(), counts, strict=True):
    trainable = [v for v in optimizer.variables_updated if v.trainable]
    without = [v for v in trainable if id(v) in missed and id(v) not in updated]
    if trainable and id(count) not in assigned:
      yield (f"the step does not apply its optimizer '{path}', so the "
             f"{len(optimizer.variables_updated)} variables that it owns do not train; call its "
             "minimize or apply, or leave it out")
    elif without:
      yield (f"the optimizer '{path}' has variables that get no gradient and do not train: "
             f"{_named(without)}; compute the whole loss inside minimize or the tape, without "
             "tf.round, tf.argmax or tf.stop_gradient, or set trainable = False")
  if untrained := [v for v in late if id(v) in missed]:
    yield ("variables that became trainable after wrap_optimizer belong to no optimizer, and do "
           f"not train: {_named(untrained)}; build all layers, including LoRA, before "
           "wrap_optimizer, pass it all variables to train, and freeze layers afterwards")


def _late(step: Callable, optimizers: Sequence[Optimizer], unfrozen: Collection[int]
          ) -> Iterator[keras.Variable]:
  """Yields variables of the optimizers' networks that became trainable after `wrap_optimizer`."""
  owned = {id(v): optimizer for optimizer in optimizers for v in optimizer.variables_updated}
  for _, network in held_by(step, (keras.layers.Layer,)):
    made = [age(owned[id(v)].nonfinite_updates) for v in network.variables if id(v) in owned]
    for v in network.trainable_variables if made else ():
      if id(v) not in owned and (id(v) in unfrozen or age(v.value) > max(made)):
        yield v


def _named(variables: Sequence[keras.Variable]) -> str:
  names = [f"'{v.path}'" for v in variables[:_NAMED]]
  more = len(variables) - len(names)
  return ", ".join(names) + (f" and {more} more" if more else "")
