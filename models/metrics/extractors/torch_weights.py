"""Fills a Keras network with the weights of its PyTorch twin."""

from collections.abc import Callable, Mapping

from replicator import UsageError

import keras
import numpy as np

_EPSILON = 1e-3  # The epsilon of batch normalization in both networks that use this.


def fill(model: keras.Model, tensors: Mapping[str, np.ndarray], norm_of: Callable[[str], str],
         origin: str) -> None:
  """Sets all weights of a network, folding batch normalization into the convolutions.

  With moving statistics m, v and gain and bias g, b, a normalized convolution has its kernel
  multiplied by s = g / sqrt(v + 0.001), and the bias b - m s. Both are computed in float64.

  Args:
    model: its layers with weights are `Conv2D`, `DepthwiseConv2D` and `Dense` with biases. They are
      named after the modules of the twin.
    tensors: the twin's state dictionary. All must be used, except `num_batches_tracked`.
    norm_of: the name of a convolution -> the name of the normalization after it.
    origin: the name of the file, for errors.

  Raises:
    UsageError: a tensor is missing, unused, of the wrong shape, or has invalid numbers.
  """
  left = {name: tensor for name, tensor in tensors.items()
          if not name.endswith("num_batches_tracked")}

  def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Removes and returns a tensor in float64, after checking its shape and numbers."""
    tensor = left.pop(name, None)
    if tensor is None:
      found = "has no such tensor"
    elif tensor.shape != tuple(shape):
      found = f"has {list(tensor.shape)}"
    elif not np.isfinite(tensor).all():
      found = "has non-finite numbers"
    elif name.endswith("running_var") and (tensor < 0).any():
      found = "has negative numbers"
    else:
      return tensor.astype(np.float64)
    raise UsageError(f"{origin} {found} where {model.name} needs {name!r} {list(shape)}: set the "
                     "path of its weights")

  for layer in model.layers:
    if layer.weights:
      layer.set_weights(_weights(layer, norm_of, take))
  if left:
    raise UsageError(f"{origin} has {len(left)} tensors that {model.name} does not have, such as "
                     f"{next(iter(left))[:80]!r}: set the path of its weights")


def _weights(layer: keras.layers.Layer, norm_of: Callable[[str], str],
             take: Callable[[str, tuple[int, ...]], np.ndarray]) -> list[np.ndarray]:
  """Returns kernel and bias; kernels are [inputs, outputs] or [h, w, inputs, outputs]."""
  kernel_shape, bias_shape = (weight.shape for weight in layer.weights)
  if isinstance(layer, keras.layers.Dense):
    return [take(f"{layer.name}.weight", kernel_shape[::-1]).T,
            take(f"{layer.name}.bias", bias_shape)]
  depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
  order = (2, 3, 0, 1) if depthwise else (2, 3, 1, 0)
  theirs = tuple(kernel_shape[order.index(axis)] for axis in range(4))  # Outputs come first.
  kernel = take(f"{layer.name}.weight", theirs)
  gain, bias, mean, variance = (
      take(f"{norm_of(layer.name)}.{name}", bias_shape)
      for name in ("weight", "bias", "running_mean", "running_var"))
  scale = gain / np.sqrt(variance + _EPSILON)
  return [(kernel * scale[:, None, None, None]).transpose(order), bias - mean * scale]
