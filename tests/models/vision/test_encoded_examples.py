"""The examples of a source as files: what a training loads, in every pixel."""

import io

import numpy as np
import pytest
from PIL import Image

from models.vision.builtin.shapes import Shapes
from models.vision.images.image_source import read
from models.vision.sources import EncodedExamples

SHAPES = Shapes(size=1400)


@pytest.fixture(scope="module")
def encoded():
  return EncodedExamples(SHAPES, "shapes", files=["a"])


def test_files_have_the_pixels_that_a_training_loads(encoded):
  # All but the first one differed by a level while a graph of its own drew them.
  indices = np.array([0, 177, 517, 618, 1295, 1311])
  images, labels = read(SHAPES, indices)
  for index, expected in zip(indices.tolist(), images, strict=True):
    with Image.open(io.BytesIO(encoded.read(index))) as image:
      np.testing.assert_array_equal(np.asarray(image), expected)
  np.testing.assert_array_equal(encoded.labels[indices], labels)


def test_an_example_is_named_by_its_number(encoded):
  assert encoded.name(3) == "shapes: example 3"
  assert (encoded.class_names, list(encoded.files())) == (SHAPES.class_names, ["a"])
