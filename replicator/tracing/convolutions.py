"""Convolutions whose gradient is unsafe on CPUs.

oneDNN, which computes convolutions on CPUs, writes outside its memory in the gradient of a strided
1x1 kernel with few input channels (github.com/uxlfoundation/oneDNN/issues/6035, seen in TensorFlow
2.21 with AVX-512). The process crashes, or goes on with wrong numbers.
"""

import os
from typing import Any

import tensorflow as tf

from replicator.tracing.graphs import operations, place

_FEWEST_CHANNELS = 16  # With these and more the gradient is right.


def unsafe(graph: Any) -> list[str]:
  """The strided 1x1 convolutions of few channels that a graph differentiates, with their places.

  It is empty if oneDNN does not compute them: in float64, on other devices, or if it is off.
  """
  if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" or _has_accelerators():
    return []
  found = list(operations(graph))
  kernels = [operation.outputs[0].shape for operation in found
             if operation.type == "Conv2DBackpropFilter" and _is_unsafe(operation)]
  return list(dict.fromkeys(
      f"a convolution with the kernel {list(operation.inputs[1].shape)}"
      f"{place(operation.traceback)}" for operation in found
      if operation.type == "Conv2D" and operation.inputs[1].shape in kernels
      and _is_strided(operation)))


def _is_unsafe(operation: tf.Operation) -> bool:
  gradient = operation.outputs[0]
  return (_is_strided(operation) and gradient.dtype != tf.float64
          and gradient.shape.is_fully_defined() and gradient.shape[:2] == [1, 1]
          and gradient.shape[2] < _FEWEST_CHANNELS)


def _is_strided(operation: tf.Operation) -> bool:
  return max(operation.get_attr("strides")) > 1


def _has_accelerators() -> bool:
  return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())
