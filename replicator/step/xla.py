"""XLA on several replicas: what a replica computes between two collectives is compiled.

XLA cannot compile a collective between the devices of a strategy. So the operations of a replica
are marked while they are traced, except the collectives, and TensorFlow compiles every group of
marked operations that needs no other in between. The groups of two replicas may differ, and then
XLA may round differently. What every replica computes for itself and keeps must be `alike`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from replicator.internals.tensorflow_internals import compile_marked_always, mark_for_xla
from replicator.step import context

import tensorflow as tf

# XLA would drop the checks, and cannot compile a collective.
_LEFT_OUT = ("Assert", "CheckNumerics", "Collective", "Nccl", "Print")
# On CPUs, XLA is slower for convolutions than TensorFlow. Their gradients begin with these, too.
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2d")
# It is four times slower for sums over the positions of maps, as in batch normalization.
_SUMS = ("BiasAddGrad", "Mean", "Sum")
_MAP_RANK = 4


@contextlib.contextmanager
def compiled_in_parts() -> Iterator[None]:
  """Compiles what one of several replicas computes in the body, its step, except collectives.

  It does nothing in a step that runs line by line.
  """
  now = context.current()
  if now.graph is None:
    yield
    return
  now.xla_in_parts = True
  compile_marked_always()
  on_cpus = "CPU" in tf.distribute.get_strategy().extended.worker_devices[0]

  def is_left_out(operation: tf.Operation) -> bool:
    if operation.type.startswith(_LEFT_OUT):
      return True
    return on_cpus and (operation.type.startswith(_CONVOLUTIONS) or (
        operation.type in _SUMS and (operation.inputs[0].shape.rank or 0) >= _MAP_RANK))

  def mark(operation: tf.Operation) -> str:
    if not now.alike and not is_left_out(operation):
      mark_for_xla(operation)
    return operation.device

  # Called for every operation that this replica makes, also in loops and branches. A function that
  # merges the replicas, as a collective does, runs in another thread.
  with now.graph.device(mark):
    yield


@contextlib.contextmanager
def alike() -> Iterator[None]:
  """Makes the body compute the same, bit for bit, on replicas that have the same numbers.

  Under XLA on several replicas TensorFlow's own operations do so; the body calls no collective.
  """
  now = context.current()
  before, now.alike = now.alike, True
  try:
    yield
  finally:
    now.alike = before


def one_program(update: Callable[..., None]) -> Callable[..., None]:
  """Makes XLA compile an update of a device's copies of some variables as one program.

  The program is the same for every device, so the copies stay equal bit for bit.
  """
  def compiled(*args: Any, **kwargs: Any) -> None:
    def program() -> None:  # It takes the tensors of the arguments from here.
      update(*args, **kwargs)
    tf.function(program, autograph=False, jit_compile=True)()
  return compiled
