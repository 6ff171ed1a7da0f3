"""What of Keras computes the same as an operation of TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops


class NoRule(Exception):
  """Keras has nothing that computes the same; the message says why."""


# ---- Layers: of an operation, its kernel and options, the layer and the kernel as it has it ------


def _dense(operation: tf.Operation, kernel: np.ndarray, **options: Any
           ) -> tuple[keras.Layer, np.ndarray]:
  if operation.get_attr("transpose_a"):
    raise NoRule("whose examples are on axis 1")
  kernel = kernel.T if operation.get_attr("transpose_b") else kernel
  return keras.layers.Dense(kernel.shape[1], **options), kernel


def _conv(operation: tf.Operation, kernel: np.ndarray, **options: Any
          ) -> tuple[keras.Layer, np.ndarray]:
  *size, inputs, filters = kernel.shape
  groups = operation.inputs[0].shape[-1] // inputs
  return keras.layers.Conv2D(filters, size, _strides(operation), _padding(operation),
                             dilation_rate=_over_map(operation, "dilations"), groups=groups,
                             **options), kernel


def _conv_transpose(operation: tf.Operation, kernel: np.ndarray, **options: Any
                    ) -> tuple[keras.Layer, np.ndarray]:
  *size, filters, _ = kernel.shape
  layer = keras.layers.Conv2DTranspose(filters, size, _strides(operation), _padding(operation),
                                       **options)
  _check_shape(operation, layer, operation.inputs[2].shape)
  return layer, kernel


def _check_shape(operation: tf.Operation, layer: keras.Layer, shape: Sequence[int | None]) -> None:
  if list(layer.compute_output_shape((1, *shape[1:]))) != operation.outputs[0].shape.as_list():
    raise NoRule(f"whose result has the shape {operation.outputs[0].shape}")


def _strides(operation: tf.Operation) -> tuple[int, int]:
  return _over_map(operation, "strides")


def _over_map(operation: tf.Operation, name: str) -> tuple[int, int]:
  """The two numbers of an attribute that are for height and width."""
  if operation.get_attr("data_format") != b"NHWC":
    raise NoRule("whose channels are on axis 1")
  _, of_height, of_width, _ = operation.get_attr(name)
  return of_height, of_width


def _padding(operation: tf.Operation) -> str:
  padding = operation.get_attr("padding").decode().lower()
  if padding not in ("same", "valid"):
    raise NoRule("with explicit padding")
  return padding


# With the places of the input and of the kernel among the arguments.
LAYERS: dict[str, tuple[Callable[..., tuple[keras.Layer, np.ndarray]], int, int]] = {
    "MatMul": (_dense, 0, 1), "Conv2D": (_conv, 0, 1),
    "Conv2DBackpropInput": (_conv_transpose, 2, 1)}


# ---- Operations: of an operation and its arguments, the symbolic results -------------------------


def _matmul(operation: tf.Operation, a: Any, b: Any) -> Any:
  transpose_a, transpose_b = (
      operation.get_attr(name) for name in (
          ("transpose_a", "transpose_b") if operation.type == "MatMul" else ("adj_x", "adj_y")))
  return ops.matmul(_swapped(a) if transpose_a else a, _swapped(b) if transpose_b else b)


def _swapped(x: Any) -> Any:
  return np.swapaxes(x, -1, -2) if isinstance(x, np.ndarray) else ops.swapaxes(x, -1, -2)


def _reshape(operation: tf.Operation, x: Any, *_: Any) -> Any:
  return ops.reshape(x, (-1, *operation.outputs[0].shape[1:]))


def _slice(operation: tf.Operation, x: Any, begin: np.ndarray, end: np.ndarray,
           strides: np.ndarray) -> Any:
  masks = {name: operation.get_attr(f"{name}_mask")
           for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
  index: list[Any] = []
  for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
    has = {name for name, mask in masks.items() if mask >> i & 1}
    if "ellipsis" in has:
      new = bin(masks["new_axis"]).count("1")
      index += [slice(None)] * (len(x.shape) - (len(begin) - 1 - new))
    elif "new_axis" in has:
      index.append(None)
    elif "shrink_axis" in has:
      index.append(int(first))
    else:
      index.append(slice(None if "begin" in has else int(first),
                         None if "end" in has else int(last), int(step)))
  return x[tuple(index)]


def _one_hot(operation: tf.Operation, labels: Any, depth: np.ndarray, on: np.ndarray,
             off: np.ndarray) -> Any:
  if (on, off) != (1, 0) or operation.get_attr("axis") != -1:
    raise NoRule("with other values than 1 and 0 on the last axis")
  return ops.one_hot(labels, int(depth), dtype=operation.outputs[0].dtype.name)


def _pool(kind: type[keras.Layer]) -> Callable[..., Any]:
  def pool(operation: tf.Operation, x: Any) -> Any:
    return kind(_over_map(operation, "ksize"), _strides(operation), _padding(operation))(x)
  return pool


def _spread(operation: tf.Operation, size_before: np.ndarray, x: Any) -> Any:
  """The gradient of average pooling: each value goes to all pixels of its block, divided."""
  size = _over_map(operation, "ksize")
  upsampling = keras.layers.UpSampling2D(size, interpolation="nearest")
  if size != _strides(operation):
    raise NoRule("whose blocks overlap")
  _check_shape(operation, upsampling, x.shape)
  return ops.multiply(upsampling(x), np.asarray(1 / (size[0] * size[1]), x.dtype))


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
  def reduce(operation: tf.Operation, x: Any, axes: np.ndarray) -> Any:
    return function(x, axis=tuple(map(int, np.ravel(axes))),
                    keepdims=operation.get_attr("keep_dims"))
  return reduce


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
  return lambda operation, *arguments: function(*arguments)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "MatMul": _matmul, "BatchMatMulV2": _matmul, "BatchMatMulV3": _matmul,
    "Reshape": _reshape, "ExpandDims": _reshape, "Squeeze": _reshape, "StridedSlice": _slice,
    "Transpose": lambda operation, x, axes: ops.transpose(x, list(map(int, axes))),
    "ConcatV2": lambda operation, *given: ops.concatenate(given[:-1], int(given[-1])),
    "Split": lambda operation, axis, x: ops.split(x, len(operation.outputs), int(axis)),
    "SplitV": lambda operation, x, sizes, axis: ops.split(
        x, np.cumsum(sizes)[:-1].tolist(), int(axis)),
    "Pack": lambda operation, *given: ops.stack(given, operation.get_attr("axis")),
    "Unpack": lambda operation, x: ops.unstack(
        x, len(operation.outputs), operation.get_attr("axis")),
    "OneHot": _one_hot,
    "Cast": lambda operation, x: ops.cast(x, operation.outputs[0].dtype.name),
    "AvgPool": _pool(keras.layers.AveragePooling2D), "MaxPool": _pool(keras.layers.MaxPooling2D),
    "AvgPoolGrad": _spread,
    "Mean": _reduction(ops.mean), "Sum": _reduction(ops.sum), "Max": _reduction(ops.max),
    "LeakyRelu": lambda operation, x: ops.leaky_relu(x, operation.get_attr("alpha")),
    "Softmax": _elementwise(ops.softmax),  # Both take the last axis.
    **{name: _elementwise(function) for name, function in {
        "Identity": lambda x: x, "IdentityN": lambda *given: given,
        "EnsureShape": lambda x: x, "StopGradient": lambda x: x,
        "AddV2": ops.add, "BiasAdd": ops.add, "Sub": ops.subtract, "Mul": ops.multiply,
        "RealDiv": ops.divide, "Maximum": ops.maximum, "Minimum": ops.minimum,
        "SquaredDifference": lambda a, b: ops.square(ops.subtract(a, b)),
        "Greater": ops.greater, "GreaterEqual": ops.greater_equal, "Less": ops.less,
        "SelectV2": ops.where, "Neg": ops.negative, "Abs": ops.abs, "Square": ops.square,
        "Sqrt": ops.sqrt, "Rsqrt": ops.rsqrt, "Exp": ops.exp, "Log": ops.log, "Tanh": ops.tanh,
        "Sigmoid": ops.sigmoid, "Softplus": ops.softplus, "Relu": ops.relu, "Elu": ops.elu,
        "Erf": ops.erf}.items()}}
