"""Runs exported networks without this project: `python loading.py RESULTS FILE ...`.

A file is the folder of a SavedModel, or `.onnx`. Its arguments are in `NAME.npz` next to it.
Results are written to RESULTS, an `.npz` file, by file name.
"""

import pathlib
import sys
from typing import Any

import numpy as np


def of_saved_model(path: str, arguments: dict[str, np.ndarray]) -> np.ndarray:
  """Calls a SavedModel with arguments by position."""
  import tensorflow as tf
  return tf.saved_model.load(path)(*map(tf.constant, arguments.values())).numpy()


def of_onnx(path: str, arguments: dict[str, np.ndarray]) -> np.ndarray:
  """Runs an ONNX graph with arguments by name."""
  import onnxruntime
  session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
  return session.run(None, arguments)[0]


LOADERS = {"": of_saved_model, ".onnx": of_onnx}


def main(results: str, *paths: str) -> None:
  """Writes the results of all files; exits with an error that names a file if one fails."""
  made: dict[str, Any] = {}
  for path in map(pathlib.Path, paths):
    with np.load(path.with_suffix(".npz")) as example:
      arguments = {name: array for name, array in example.items() if name != "expected"}
    try:
      made[path.name] = LOADERS[path.suffix](str(path), arguments)
    except Exception as error:
      sys.exit(f"{path.name}: {type(error).__name__}: {error}".partition("\n")[0])
  np.savez(results, **made)


if __name__ == "__main__":
  main(*sys.argv[1:])
