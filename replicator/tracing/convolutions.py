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
  is_cpu = all(device.device_type == "CPU" for device in tf.config.list_physical_devices())
  if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" or not is_cpu:
    return []
  found = list(operations(graph))
  differentiated = [operation.outputs[0].shape for operation in found
                    if operation.type == "Conv2DBackpropFilter"]
  return list(dict.fromkeys(
      f"a convolution with the kernel {list(operation.inputs[1].shape)}"
      f"{place(operation.traceback)}" for operation in found
      if operation.type == "Conv2D" and _is_unsafe(operation)
      and operation.inputs[1].shape in differentiated))


def _is_unsafe(convolution: tf.Operation) -> bool:
  kernel = convolution.inputs[1]
  return (max(convolution.get_attr("strides")) > 1 and kernel.dtype != tf.float64
          and kernel.shape.is_fully_defined() and kernel.shape[:2] == [1, 1]
          and kernel.shape[2] < _FEWEST_CHANNELS)
