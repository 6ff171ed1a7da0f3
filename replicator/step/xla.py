"""XLA on several replicas: compiles what a replica computes between two collectives.

XLA cannot compile a collective between the devices of a strategy. So all operations of a replica
except collectives are marked while they are traced, and TensorFlow compiles each group of marked
operations with no unmarked operation in between. The groups may differ between replicas, and XLA
may then round differently. So state that every replica computes for itself must be computed in
`alike`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from replicator.internals.tensorflow_internals import compile_marked_always, mark_for_xla
from replicator.step import context

import tensorflow as tf

# XLA would drop checks, and cannot compile collectives.
_LEFT_OUT = ("Assert", "CheckNumerics", "Collective", "Nccl", "Print")
# On CPUs, XLA is slower than TensorFlow for convolutions. Their gradients have the same prefixes.
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2d")
# It is four times slower for sums over the positions of feature maps, as in batch normalization.
_SUMS = ("BiasAddGrad", "Mean", "Sum")
_MAP_RANK = 4


@contextlib.contextmanager
def compiled_in_parts() -> Iterator[None]:
  """Compiles what one of several replicas computes in the body, except collectives.

  Does nothing in a step that runs eagerly.
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

  # Called for every operation of this replica, including those in loops and branches. A merge call,
  # as in a collective, runs in a different thread.
  with now.graph.device(mark):
    yield


@contextlib.contextmanager
def alike() -> Iterator[None]:
  """Makes replicas with the same inputs compute the same bits in the body.

  Under XLA on several replicas, XLA does not compile the body. The body must not call a collective.
  """
  now = context.current()
  before, now.alike = now.alike, True
  try:
    yield
  finally:
    now.alike = before


def one_program(update: Callable[..., Any]) -> Callable[..., Any]:
  """Makes XLA compile an update of a device's copies of some variables as one program.

  The program is the same for every device, so the copies stay equal bit for bit.
  """
  def compiled(*args: Any, **kwargs: Any) -> Any:
    def program() -> Any:  # Captures the tensors among the arguments.
      return update(*args, **kwargs)
    return tf.function(program, autograph=False, jit_compile=True)()
  return compiled
