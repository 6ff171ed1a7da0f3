"""Writes networks as SavedModel and ONNX, and checks the files in a separate process."""

import importlib.util
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from models.export import loading
from models.export.graph import FrozenGraph
from models.export.networks import ExportedNetwork
from replicator import UsageError, processes
from replicator.errors import RunFailed, first_line

import numpy as np
import tensorflow as tf

SUFFIXES = {"savedmodel": "", "onnx": ".onnx"}
# Relative to the largest output; absolute if that is below 1.
_TOLERANCES = {"": 1e-6, ".onnx": 1e-5}
_ONNX_PACKAGES = ("tf2onnx", "onnx", "onnxruntime")
_EXAMPLES = 16


def check_formats(formats: Sequence[str]) -> None:
  """Raises a UsageError if a format is unknown, or needs a package that is not installed."""
  for name in formats:
    if name not in SUFFIXES:
      raise UsageError(f"--formats={name}: choose from {','.join(SUFFIXES)}")
  missing = [each for each in _ONNX_PACKAGES if not importlib.util.find_spec(each)]
  if "onnx" in formats and missing:
    raise UsageError(f"--formats=onnx: needs the package {missing[0]}; run pip install "
                     "'replicator[export]', or use --formats=savedmodel")


def write(network: ExportedNetwork, formats: Sequence[str], folder: pathlib.Path
          ) -> list[pathlib.Path]:
  """Writes a network to a folder in the given formats; returns the paths in the same order.

  `NAME.npz` holds example arguments, by name, and `expected`, the run's own output for them.

  Raises:
    UsageError: a format cannot represent the network.
  """
  arguments = network.example(_EXAMPLES)
  expected = network.function(*map(tf.constant, arguments)).numpy()
  example: dict[str, Any] = {
      each.name: array for each, array in zip(network.inputs, arguments, strict=True)}
  np.savez(folder / f"{network.name}.npz", expected=expected, **example)
  served = _Served(network)
  paths = [folder / f"{network.name}{SUFFIXES[each]}" for each in formats]
  for path in paths:
    if path.suffix:
      _write_onnx(served, network, path)
    else:
      # The graphs of gradients would refer to tensors of the run's own graph.
      options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
      tf.saved_model.save(served, str(path), {"serving_default": served.serve}, options)
  return paths


def check(paths: Sequence[pathlib.Path]) -> dict[str, float]:
  """Returns the largest difference between each file's outputs and the run's, by file name.

  A new process loads the files, without this project.

  Raises:
    RunFailed: a file does not load, or its outputs differ too much.
  """
  differences = {}
  results = _loaded(paths)
  for path in paths:
    with np.load(path.with_suffix(".npz")) as example:
      expected = example["expected"]
    found = results[path.name]
    difference = (float(np.abs(found - expected).max()) if found.shape == expected.shape
                  else np.nan)
    if not difference <= _TOLERANCES[path.suffix] * max(1.0, np.abs(expected).max()):
      raise RunFailed(f"{path.name}: its output differs from the run's by {difference:.2g}, so "
                      "nothing was written; leave out this format")
    differences[path.name] = difference
  return differences


def _loaded(paths: Sequence[pathlib.Path]) -> dict[str, np.ndarray]:
  """Returns the outputs of each file, by file name."""
  with tempfile.TemporaryDirectory(prefix="replicator-") as folder:
    results = pathlib.Path(folder, "results.npz")
    ended = subprocess.run(
        [sys.executable, loading.__file__, str(results), *(str(each.resolve()) for each in paths)],
        cwd=folder, env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True,
        text=True, preexec_fn=processes.end_with_parent())
    if ended.returncode:
      lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
      raise RunFailed(f"{lines[-1]}; nothing was written; leave out this format")
    with np.load(results) as found:
      return dict(found)


class _Served(tf.Module):
  """A network's graph to save. The signature of `serve` names the arguments and the result."""

  def __init__(self, network: ExportedNetwork):
    super().__init__()
    signature = [each.spec for each in network.inputs]
    graph = FrozenGraph(network.function, signature)
    # Sizes and axes remain constants, because shapes depend on them.
    weights = {name: tf.Variable(value, trainable=False) for name, value in graph.constants.items()
               if value.ndim and tf.as_dtype(value.dtype).is_floating}
    self.weights = list(weights.values())

    def call(*arguments: tf.Tensor) -> tf.Tensor:
      return graph.imported(arguments, {
          name: weights[name].read_value() if name in weights else tf.constant(value)
          for name, value in graph.constants.items()})

    def serve(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
      return {network.output.name: call(*arguments)}

    self.__call__ = tf.function(call, signature, autograph=False)
    self.serve = tf.function(serve, signature, autograph=False)


def _write_onnx(served: _Served, network: ExportedNetwork, path: pathlib.Path) -> None:
  import onnx
  import tf2onnx
  logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # The error below says what is wrong.
  try:
    made, _ = tf2onnx.convert.from_function(
        served.serve, [each.spec for each in network.inputs],
        custom_op_handlers={"AvgPoolGrad": (_convert_upsampling, []), "Erfc": (_convert_erfc, [])})
    onnx.checker.check_model(made)  # Fails if an operation without an ONNX equivalent was copied.
  except Exception as error:
    raise UsageError(f"{network.name}: cannot be converted to ONNX ({first_line(error)}); use "
                     "--formats=savedmodel, which supports any network") from error
  shapes: dict[str, tuple[str | int, ...]] = {
      each.name: ("n", *each.shape) for each in (*network.inputs, network.output)}
  for each in (*made.graph.input, *made.graph.output):
    dtype = each.type.tensor_type.elem_type
    each.type.CopyFrom(onnx.helper.make_tensor_type_proto(dtype, shapes[each.name]))
  onnx.save(made, path)


def _convert_upsampling(context: Any, node: Any, *_: Any) -> None:
  """Converts the operation of `models.gan.networks.resampling.upsample` to ONNX nodes.

  The operation, the gradient of average pooling, divides a value equally among a block's pixels.
  """
  from tf2onnx import utils
  shape, values = node.input
  (_, height, width, _), strides = (node.get_attr_value(name) for name in ("ksize", "strides"))
  if [height, width] != strides[1:3]:
    raise ValueError("AvgPoolGrad with overlapping windows")

  def constant(value: Any, dtype: Any = np.int64) -> str:
    return context.make_const(utils.make_name("constant"), np.array(value, dtype)).output[0]

  def add(kind: str, *inputs: str, **options: Any) -> str:
    return context.make_node(kind, list(inputs), **options).output[0]

  part = constant(1 / (height * width), utils.map_onnx_to_numpy_type(context.get_dtype(values)))
  pixels = add("Unsqueeze", add("Mul", values, part), constant([2, 4]))
  pixels = add("Tile", pixels, constant([1, 1, height, 1, width, 1]))
  shape = add("Cast", shape, attr={"to": utils.map_numpy_to_onnx_dtype(np.int64)})
  context.remove_node(node.name)
  add("Reshape", pixels, shape, name=node.name, outputs=node.output)


def _convert_erfc(context: Any, node: Any, *_: Any) -> None:
  """Converts 1 - erf(x), as in Keras' `gelu`, to ONNX nodes."""
  from tf2onnx import utils
  dtype = utils.map_onnx_to_numpy_type(context.get_dtype(node.input[0]))
  one = context.make_const(utils.make_name("constant"), np.array(1, dtype)).output[0]
  erf = context.make_node("Erf", [node.input[0]]).output[0]
  context.remove_node(node.name)
  context.make_node("Sub", [one, erf], name=node.name, outputs=node.output)
