"""A data set of Hugging Face that the test writes: the same images, and one-line errors."""

import functools
import sys

import numpy as np
import pytest

from models.vision.files.hugging_face import HuggingFace
from models.vision.images.write import png
from tests.programs.refusals import refusal

IMAGES = np.random.default_rng(0).integers(0, 256, [5, 8, 8, 3], np.uint8)
LABELS = [1, 0, 2, 1, 2]
line_of = functools.partial(refusal, HuggingFace)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with a data set of five images; the last one is in a file of its own."""
  datasets = pytest.importorskip("datasets")
  root = tmp_path_factory.mktemp("datasets")
  (root / "5.png").write_bytes(png(IMAGES[4]))
  images = [*({"bytes": png(image), "path": None} for image in IMAGES[:4]),
            {"bytes": None, "path": str(root / "5.png")}]
  features = datasets.Features({
      "image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "bird"]),
      "size": datasets.Value("int32"), "share": datasets.Value("float32")})
  rows = {"image": images, "label": LABELS, "size": [3, 1, 0, 1, 2], "share": [0.5] * 5}
  data = datasets.Dataset.from_dict(rows, features=features)
  datasets.DatasetDict({"train": data, "test": data.select([3])}).save_to_disk(str(root / "pets"))
  data.save_to_disk(str(root / "one"))
  return root


def test_a_split_and_a_column_are_named(folder):
  assert HuggingFace(str(folder / "pets"), 8, split="test").size == 1
  assert HuggingFace(str(folder / "one"), 8).size == 5  # A data set without splits.
  source = HuggingFace(str(folder / "pets"), 8, label="size")
  assert source.class_names == ("0", "1", "2", "3")


def test_what_is_not_there_is_refused(folder, monkeypatch):
  pets = str(folder / "pets")
  assert line_of(pets, 8, label="breed") == (
      f"HuggingFace.label = 'breed': no such column in {pets}; it has: image, label, size, share")
  assert line_of(pets, 8, image="label") == (
      f"HuggingFace.image = 'label': is no column of images in {pets}")
  assert line_of(pets, 8, label="share") == (
      f"HuggingFace.label = 'share': is no column of numbers of classes in {pets}")
  assert line_of(pets, 8, split="validation").startswith(
      f"HuggingFace.path = '{pets}': 'validation' cannot be opened (")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  assert line_of(str(folder / "nowhere"), 8).startswith(
      f"HuggingFace.path = '{folder / 'nowhere'}': 'train' cannot be opened (")


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "datasets", None)
  assert line_of("cifar10", 32) == (
      "HuggingFace needs the package datasets: pip install -e '.[huggingface]'")
