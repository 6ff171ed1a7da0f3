"""A data set of TensorFlow Datasets that the test writes: the same images, and one-line errors."""

import sys

import numpy as np
import pytest

from models.vision import convert
from models.vision.files.tfds import TFDS
from models.vision.images.image_source import read
from models.vision.shards.tfrecords import TFRecords
from replicator.errors import UsageError

IMAGES = np.random.default_rng(0).integers(0, 256, [5, 8, 8, 3], np.uint8)
LABELS = [1, 0, 2, 1, 2]


def line_of(*arguments, **settings):
  with pytest.raises(UsageError) as error:
    TFDS(*arguments, **settings)
  return str(error.value).splitlines()[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with a data set of five images, in ArrayRecord files."""
  tfds = pytest.importorskip("tensorflow_datasets")
  pytest.importorskip("array_record")
  folder = tmp_path_factory.mktemp("tfds")
  features = tfds.features.FeaturesDict({
      "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
      "label": tfds.features.ClassLabel(names=["cat", "dog", "bird"])})
  tfds.dataset_builders.store_as_tfds_dataset(
      "pets", "1.0.0", features=features, data_dir=str(folder), file_format="array_record",
      disable_shuffling=True, split_datasets={
          "train": [(i, {"image": image, "label": label})
                    for i, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True))]})
  return str(folder)


@pytest.mark.parametrize("limit", [0, 10_000], ids=["drawn", "kept"])
def test_examples_are_those_of_the_data_set(folder, limit):
  source = TFDS("pets", 8, data_dir=folder, memory_limit=limit)
  assert (source.size, source.class_names) == (5, ("cat", "dog", "bird"))
  order = np.array([4, 0, 0, 3])
  images, labels = read(source, order)
  np.testing.assert_array_equal(images, IMAGES[order])
  assert labels.tolist() == [LABELS[i] for i in order]
  assert TFDS("pets", 8, split="train[:40%]", data_dir=folder).size == 2


def test_it_is_converted(folder, tmp_path):
  import tensorflow_datasets as tfds
  tfds.core.add_data_dir(folder)
  assert convert.main(["tfds:pets", str(tmp_path / "out"), "--shards=2", "--resolution=8"]) == 0
  images, labels = read(TFRecords(str(tmp_path / "out")), np.arange(5))
  np.testing.assert_array_equal(images, IMAGES)
  assert labels.tolist() == LABELS


def test_what_is_not_there_is_refused(folder):
  assert line_of("pets", 8, data_dir=folder, label="breed") == (
      "TFDS.label = 'breed': no such feature in pets; it has: image, label")
  assert line_of("pats", 8, data_dir=folder).startswith(
      "TFDS.name = 'pats': cannot be opened (")
  assert line_of("pets", 8, split="test", data_dir=folder).startswith(
      "TFDS.name = 'pets': cannot be opened (")


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  assert line_of("cifar10", 32) == (
      "TFDS needs TensorFlow Datasets: pip install 'replicator[tfds]'")
