"""Data sets of TensorFlow Datasets, written for a test."""

import pathlib
from collections.abc import Sequence
from typing import Any

from models.vision.images.labels import Labels

import numpy as np
import pytest


def write(name: str, root: pathlib.Path, images: np.ndarray, features: dict[str, Any],
          values: dict[str, Sequence]) -> None:
  """Writes the split `train` of a data set, with a PNG file of each image.

  It skips the test without the package.

  Args:
    name: of the data set.
    root: the folder of data sets.
    images: uint8 [n, h, w, 3].
    features: the others of an example, as a `FeaturesDict` takes them.
    values: of these features, n each.
  """
  tfds = pytest.importorskip("tensorflow_datasets")
  pytest.importorskip("array_record")
  image = tfds.features.Image(shape=(None, None, 3), encoding_format="png")
  rows = [(i, {"image": image, **{key: of_each[i] for key, of_each in values.items()}})
          for i, image in enumerate(images)]
  tfds.dataset_builders.store_as_tfds_dataset(
      name, "1.0.0", features=tfds.features.FeaturesDict({"image": image, **features}),
      data_dir=str(root), file_format="array_record", disable_shuffling=True,
      split_datasets={"train": rows})


def write_labeled(name: str, root: pathlib.Path, images: np.ndarray, labels: Labels) -> None:
  """As `write`, with a label of each image; and finds the data set by its name alone."""
  tfds = pytest.importorskip("tensorflow_datasets")
  numbers, class_names = labels
  write(name, root, images, {"label": tfds.features.ClassLabel(names=list(class_names))},
        {"label": numbers.tolist()})
  tfds.core.add_data_dir(str(root))
