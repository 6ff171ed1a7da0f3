"""Hooks: what looks into a step while it is traced or run, such as the doctor.

A step without hooks is the step of an ordinary training. The hooks of a run come from its
callbacks, see `replicator.Callback`.
"""

import dataclasses
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Transfer:
  """A tensor that a collective of a step moves between replicas, the backward pass included."""

  move: str  # 'all_reduce', 'all_gather' or 'all_to_all'.
  bytes: int | None  # The size of each replica's tensor; None if it varies.


class Hook:
  """Sees what a step does on a replica, in the order in which the step does it; override what you
  need.

  The methods but `received` are called on every replica while the step is traced, or at every step
  if it runs eagerly. Replicas are traced in turns: what a hook keeps of one until its step ends, it
  keeps in `context.current().kept[self]`.
  """

  def drawn(self, stream: str, rows: int) -> None:
    """A random stream is drawn from, for so many rows."""

  def transferred(self, transfer: Transfer) -> None:
    """A collective moves a tensor."""

  def measured(self, owner: Any, values: dict[str, tf.Tensor]) -> None:
    """A layer or an optimizer has numbers [] about itself, by name."""

  def updating(self, optimizer: Any, variables: list, local: list[tf.Tensor],
               averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """An optimizer is about to update variables; returns the gradients to update them with.

    Args:
      optimizer: the `replicator.Optimizer`.
      variables: the Keras variables that have a gradient.
      local: the gradients of this replica.
      averaged: their means over the replicas.
    """
    return averaged

  def scalars(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The step has returned these scalars; returns more to log with them."""
    return {}

  def ended(self, batch: tuple, outputs: Any) -> dict[str, tf.Tensor]:
    """The step has returned `outputs`; returns more tensors, by name, that the call returns.

    They must be the same on all replicas.
    """
    return {}

  def received(self, step: int, values: dict[str, tf.Tensor]) -> None:
    """What `ended` returned in the training step number `step`, counted from 0, has arrived."""
