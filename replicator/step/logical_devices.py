"""Model parallelism: a replica may span several devices, and the step places its parts on them.

A step sees only the devices of its own replica, as logical devices 0, 1, ...
"""

import contextlib
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.step import context

import tensorflow as tf

_SCOPE = "logical_device_"
_IN_SCOPE = re.compile(rf"(?:^|/){_SCOPE}(\d+)(?:_\d+)?/")


class MultiDeviceMirroredStrategy(tf.distribute.MirroredStrategy):
  """A MirroredStrategy whose replicas span several devices; TensorFlow sees the first of each.

  `devices` are names, `[num_replicas][devices_per_replica]`. `columns` are the i-th devices of all
  replicas, `[devices_per_replica][num_replicas]`.
  """

  def __init__(self, devices: Sequence[Sequence[str]],
               cross_device_ops: tf.distribute.CrossDeviceOps | None = None):
    super().__init__([of_replica[0] for of_replica in devices], cross_device_ops)
    self.columns = list(zip(*devices, strict=True))


@contextlib.contextmanager
def logical_device(index: int) -> Iterator[None]:
  """Places the body on the `index`-th device of the replica that runs it.

      with replicator.logical_device(1):
        logits = self.head(features)

  In a step, the operations of the body run on that device. In a compiled step, their gradients run
  there too, except the gradients of loops, branches and `tf.function`s, which run on logical
  device 0.

  In `Replicator.scope()`, each replica's copies of the variables go to that device, together with
  the slots and averages that an optimizer keeps for them. Elsewhere, as in an evaluation, the
  devices are those of the first replica. In a step that `replicator.load` returned, all logical
  devices are the same device. Everything else, such as inputs and the mean of gradients over
  replicas, is on logical device 0. With one device per replica, `logical_device(0)` has no effect.

  Args:
    index: the number of the device in its replica, from 0.

  Raises:
    UsageError: the replicas have no such device. They are those of the running `Replicator`, or,
      outside of steps and scopes, of the newest one.
  """
  columns = _columns()
  if context.run.is_loaded and not columns:  # All logical devices are the only device.
    yield
    return
  count = max(1, len(columns))
  if not isinstance(index, int) or not 0 <= index < count:
    raise UsageError(f"logical_device({index!r}): must be a whole number, at least 0 and below "
                     f"Replicator.devices_per_replica = {count}; raise that setting, or choose a "
                     "smaller number")
  if not columns:
    yield
    return
  column = columns[index]

  def create(next_creator, **kwargs):
    if kwargs.get("colocate_with") is None:  # Slots are already colocated with their variables.
      kwargs["colocate_with"] = types.SimpleNamespace(_devices=column)  # Mimics a variable.
    return next_creator(**kwargs)

  replica = int(tf.get_static_value(context.copy_id()))
  with contextlib.ExitStack() as stack:
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
      stack.enter_context(tf.variable_creator_scope(create))
    stack.enter_context(tf.name_scope(f"{_SCOPE}{index}"))  # For `gradients_placed`.
    stack.enter_context(tf.device(column[replica]))
    yield


@contextlib.contextmanager
def gradients_placed() -> Iterator[None]:
  """Runs the backward pass of the body, a compiled step, on the devices of the forward pass."""
  # A tape keeps the name scope of each operation for its gradient, but not its device.
  columns = _columns()
  graph = context.current().graph
  if not columns or graph is None:
    yield
    return
  replica = int(tf.get_static_value(context.copy_id()))

  def place(operation: Any) -> str:
    scopes = _IN_SCOPE.findall(operation.name)
    if scopes and not operation.device:
      return columns[int(scopes[-1])][replica]
    # The sum of several gradients of one tensor has no scope; place it with its summands.
    if operation.type == "AddN" and all(
        x.op.name.startswith("gradient_tape/") for x in operation.inputs):
      devices = {x.device for x in operation.inputs}
      return devices.pop() if len(devices) == 1 else operation.device
    return operation.device

  with graph.device(place):
    yield


def _columns() -> list[tuple[str, ...]]:
  strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else context.run.strategy
  return strategy.columns if isinstance(strategy, MultiDeviceMirroredStrategy) else []
