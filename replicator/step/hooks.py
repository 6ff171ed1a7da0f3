"""Hooks, which observe a step while it is traced or run; the doctor uses them.

The hooks of a run come from its callbacks; see `replicator.Callback`. An ordinary run has none.
"""

import dataclasses
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Transfer:
  """A tensor that a collective moves between replicas, in the forward or the backward pass."""

  move: str  # 'all_reduce', 'all_gather', 'reduce_scatter' or 'all_to_all'.
  bytes: int | None  # The size of each replica's tensor; None if it varies.
  parts: int | None = None  # The number of parts, if it is one part of a sharded value.


class Hook:
  """An observer of what a step does on a replica, in order; override the methods you need.

  All methods except `received` are called on every replica while the step is traced, or at every
  step if it runs eagerly. Replicas are traced in turns, so keep per-replica state that lasts until
  the step ends in `context.current().kept[self]`.
  """

  def drawn(self, stream: str, rows: int) -> None:
    """Called when the step draws from a random stream for `rows` examples."""

  def transferred(self, transfer: Transfer) -> None:
    """Called when a collective moves a tensor."""

  def measured(self, owner: Any, values: dict[str, tf.Tensor]) -> None:
    """Called when a layer or an optimizer reports scalars [] about itself, by name."""

  def updating(self, optimizer: Any, variables: list, local: list[tf.Tensor],
               averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Called before an optimizer updates variables; returns the gradients to update them with.

    Args:
      optimizer: the `replicator.Optimizer`.
      variables: the Keras variables that have a gradient.
      local: the gradients of this replica.
      averaged: their means over the replicas.
    """
    return averaged

  def scalars(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Called when the step has returned these scalars; returns more scalars to log."""
    return {}

  def ended(self, batch: tuple, outputs: Any) -> dict[str, tf.Tensor]:
    """Called when the step has returned `outputs`; returns tensors, by name, for `received`.

    They must be the same on all replicas.
    """
    return {}

  def received(self, step: int, values: dict[str, tf.Tensor]) -> None:
    """Receives the values that `ended` returned in training step `step`, counted from 0."""
