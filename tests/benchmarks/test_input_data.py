"""The data of `benchmarks.input_pipeline`: every source sees the same photos, however many."""

import sys

from benchmarks import input_data
from models.vision.images.image_source import read
from models.vision.sources import ImageArrays, ImageFolder, ImageZip, TFRecords

import numpy as np
import pytest


def sources(root):
  """The images of all files under `root`, as each source decodes them."""
  return [ImageFolder(str(root / "folder"), 16, memory_limit=0),
          ImageZip(str(root / "zip.zip"), 16, memory_limit=0),
          TFRecords(str(root / "tfrecords"), 16, memory_limit=0),
          ImageArrays(str(root / "arrays"))]


@pytest.mark.skipif(sys.version_info >= (3, 13),
                    reason="the archive's entries share their data, which this Python refuses")
def test_all_sources_have_the_same_images_and_repeat_them(tmp_path):
  first, more = tmp_path / "first", tmp_path / "more"
  input_data.make_photos(first / "folder", 5)
  input_data.make_sources(first, (), 16)
  images, labels = read(sources(first)[0], np.arange(5))
  assert len({image.tobytes() for image in images}) == 5 and labels.tolist() == [0, 1, 2, 3, 4]
  for source in sources(first)[1:]:
    np.testing.assert_array_equal(read(source, np.arange(5))[0], images)
  input_data.repeat(first, more, 3)
  expected = {(label, image.tobytes()) for label, image in zip(labels, images, strict=True)}
  for source in sources(more):
    assert source.size == 15
    if not isinstance(source, ImageArrays):  # Its file has holes.
      found = zip(*read(source, np.arange(15)), strict=True)
      assert {(label, image.tobytes()) for image, label in found} == expected
