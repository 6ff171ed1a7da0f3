"""Writes networks as SavedModel, `.keras` and ONNX, and checks what another process computes.

A SavedModel holds the graph. A `.keras` file holds layers and operations of Keras that compute the
same, and an ONNX file what these are in ONNX.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.export import loading
from models.export.graph import FrozenGraph
from models.export.networks import ExportedNetwork
from models.export.plain_keras import plain_model
from replicator import UsageError, processes
from replicator.errors import RunFailed, first_line

SUFFIXES = {"savedmodel": "", "keras": ".keras", "onnx": ".onnx"}
_TOLERANCES = {"": 1e-6, ".keras": 1e-6, ".onnx": 1e-5}  # For results up to 1.
_NEEDED = {"onnx": ("tf2onnx", "onnx", "onnxruntime")}
_EXAMPLES = 16


def check_formats(formats: Sequence[str]) -> None:
  """Raises a UsageError if a format is unknown, or needs a package that is not installed."""
  for name in formats:
    if name not in SUFFIXES:
      raise UsageError(f"--formats={name}: write some of {','.join(SUFFIXES)}")
    missing = [each for each in _NEEDED.get(name, ()) if not importlib.util.find_spec(each)]
    if missing:
      others = ",".join(each for each in SUFFIXES if each not in _NEEDED)
      raise UsageError(f"--formats={name}: needs the package {missing[0]}; run pip install "
                       f"'replicator[export]', or write --formats={others}")


def write(network: ExportedNetwork, formats: Sequence[str], folder: pathlib.Path
          ) -> list[pathlib.Path]:
  """Writes a network into a folder, in some formats; returns the files, in this order.

  `NAME.npz` has arguments, by name, and the result `expected` of the run itself.

  Raises:
    UsageError: a format cannot hold the network.
  """
  arguments = network.example(_EXAMPLES)
  expected = network.function(*map(tf.constant, arguments)).numpy()
  example: dict[str, Any] = {
      each.name: array for each, array in zip(network.inputs, arguments, strict=True)}
  np.savez(folder / f"{network.name}.npz", expected=expected, **example)
  paths = [folder / f"{network.name}{SUFFIXES[each]}" for each in formats]
  for path in paths:
    _WRITERS[path.suffix](network, path)
  return paths


def check(paths: Sequence[pathlib.Path]) -> dict[str, float]:
  """The greatest difference of each file's results from those of the run, by its name.

  A new process loads the files, without this project.

  Raises:
    RunFailed: a file does not load, or its results are others.
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
      raise RunFailed(f"{path.name}: its results differ from those of the run by {difference:.2g}, "
                      "so nothing was written; leave out this format")
    differences[path.name] = difference
  return differences


def _loaded(paths: Sequence[pathlib.Path]) -> dict[str, np.ndarray]:
  """The results of each file, by its name."""
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


# ---- Writers ------------------------------------------------------------------------------------


class _Served(tf.Module):
  """Computes a graph. The signature of `serve` has the names of the arguments and the result."""

  def __init__(self, network: ExportedNetwork):
    super().__init__()
    signature = [each.spec for each in network.inputs]
    graph = FrozenGraph(network.function, signature)
    # Sizes and axes stay constants, because shapes follow from them.
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


def _write_saved_model(network: ExportedNetwork, path: pathlib.Path) -> None:
  module = _Served(network)
  # The graphs of gradients would refer to tensors of the run's own graph.
  options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
  tf.saved_model.save(module, str(path), {"serving_default": module.serve}, options)


def _write_keras(network: ExportedNetwork, path: pathlib.Path) -> None:
  _plain(network).save(path)


def _plain(network: ExportedNetwork) -> keras.Model:
  return plain_model(network.name, network.function, [each.spec for each in network.inputs])


def _write_onnx(network: ExportedNetwork, path: pathlib.Path) -> None:
  import onnx
  import tf2onnx
  model = _plain(network)

  def call(*arguments: tf.Tensor) -> tf.Tensor:
    return model(arguments if len(arguments) > 1 else arguments[0])

  try:
    made, _ = tf2onnx.convert.from_function(
        tf.function(call, autograph=False), [each.spec for each in network.inputs])
  except Exception as error:
    raise UsageError(f"{network.name}: tf2onnx cannot convert it ({first_line(error)}); write "
                     "--formats=savedmodel,keras") from error
  _name_result(made.graph, network.output.name)
  for each in (*made.graph.input, *made.graph.output):
    each.type.tensor_type.shape.dim[0].dim_param = "n"
  onnx.save(made, path)


def _name_result(graph: Any, name: str) -> None:
  """Names the one result of an ONNX graph, which is `Identity:0`."""
  before, graph.output[0].name = graph.output[0].name, name
  for node in graph.node:
    for names in (node.input, node.output):
      names[:] = [name if each == before else each for each in names]


_WRITERS: dict[str, Callable[[ExportedNetwork, pathlib.Path], None]] = {
    "": _write_saved_model, ".keras": _write_keras, ".onnx": _write_onnx}
