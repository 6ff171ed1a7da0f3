"""The classes of images in files: by folder, by list, by array."""

import io
import json

import numpy as np
import pytest

from models.metrics.images import image_classes
from models.metrics.images.image_sets import Source, open_set
from models.vision.builtin.digits import Digits, digit_images
from models.vision.images import write
from replicator.errors import UsageError

FILES = ["cat/1.png", "dog/deep/0.png", "dog/2.png"]


def of_files(files, listed=None):
  def open_file(name):
    if listed is None or name != "dataset.json":
      raise FileNotFoundError(name)
    return io.BytesIO(listed.encode())

  return image_classes.of_files("data", files, open_file)


def test_folders_are_classes_as_those_of_an_image_folder():
  assert image_classes.folders(FILES) == ("cat", "dog")
  assert of_files(FILES).tolist() == [0, 1, 1]
  assert image_classes.folders([*FILES, "0.png"]) == () and of_files([*FILES, "0.png"]) is None


def test_a_list_goes_before_folders():
  listed = json.dumps({"labels": [[file, 7 - i] for i, file in enumerate(FILES)]})
  assert of_files(FILES, listed).tolist() == [7, 6, 5]
  assert of_files(FILES, '{"labels": null}').tolist() == [0, 1, 1]


def test_a_list_that_lacks_a_file_is_one_line():
  with pytest.raises(UsageError, match="labels for 1 of 3 images; dog/deep"):
    of_files(FILES, '{"labels": [["cat/1.png", 0]]}')


def test_what_is_sampled_has_its_classes(tmp_path):
  images, labels = (array[:20] for array in digit_images())
  write.write_folder(tmp_path / "folder", [(images, labels)])
  write.write_zip(tmp_path / "a.zip", [(images, labels)])
  np.savez(tmp_path / "a.npz", images, labels)
  some = np.array([1, 5, 19])
  for name in ("folder", "a.zip", "a.npz"):
    found = open_set(str(tmp_path / name))
    np.testing.assert_array_equal(found.labels(some), labels[some])
  np.testing.assert_array_equal(Source("digits", Digits()).labels(some), labels[some])


def test_of_two_arrays_of_numbers_none_is_the_classes():
  numbers = np.arange(4)
  assert image_classes.of_arrays({"a": numbers, "b": np.zeros([4, 2])}, 4) is numbers
  assert image_classes.of_arrays({"a": numbers, "b": numbers}, 4) is None
  assert image_classes.of_arrays({"a": numbers * 0.5, "b": numbers[:3]}, 4) is None
