"""A data set of TensorFlow Datasets that the test writes: the same images, and one-line errors."""

import functools
import sys

import pytest

from models.vision.files.tfds import TFDS
from tests.models.vision.test_sources import data_set_of_tfds
from tests.programs.refusals import refusal

line_of = functools.partial(refusal, TFDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with a data set of five images, in ArrayRecord files."""
  root = tmp_path_factory.mktemp("tfds")
  data_set_of_tfds(root)
  return str(root)


def test_a_split_is_a_part(folder):
  assert TFDS("pets", 8, split="train[:40%]", data_dir=folder).size == 2


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
      "TFDS needs TensorFlow Datasets: pip install -e '.[tfds]'")
