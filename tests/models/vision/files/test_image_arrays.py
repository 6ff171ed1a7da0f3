"""NumPy files as a source: mapped into memory, and refused in one line."""

import os

from models.vision.files.image_arrays import ImageArrays
from models.vision.images.image_source import read
from models.vision.sources import EncodedExamples
from replicator.errors import UsageError
from tests.programs.refusals import refusal

import numpy as np
import pytest

NOISE = np.random.default_rng(0)
IMAGES = NOISE.integers(0, 256, [6, 8, 10, 3], np.uint8)
LABELS = np.array([3, 0, 0, 1, 3, 2], np.int64)
line_of = lambda path, **settings: refusal(ImageArrays, str(path), **settings)


def save(path, **arrays):
  """Writes arrays as an archive, or as the files of a folder."""
  if path.suffix == ".npz":
    np.savez(path, **arrays)
  else:
    path.mkdir()
    for name, array in arrays.items():
      np.save(path / f"{name}.npy", array)
  return str(path)


@pytest.mark.parametrize("name", ["a.npz", "folder"])
def test_images_of_a_folder_are_mapped_and_not_read(name, tmp_path):
  path = save(tmp_path / name, x=np.asarray(IMAGES, order="F"), images=IMAGES[:1], y=LABELS)
  source = ImageArrays(path, images="x", labels="y")
  assert isinstance(source._images, np.memmap) == (name == "folder")
  assert (source.size, source.image_shape, source.num_classes) == (6, (8, 10, 3), 4)
  assert source.class_names == ("0", "1", "2", "3")
  order = np.array([5, 0, 3, 3])
  images, labels = read(source, order)
  np.testing.assert_array_equal(images, IMAGES[order])
  np.testing.assert_array_equal(labels, LABELS[order])


def test_gray_images_may_have_no_channel_and_all_one_class(tmp_path):
  source = ImageArrays(save(tmp_path / "a.npz", images=IMAGES[..., 0]), labels=None)
  assert source.image_shape == (8, 10, 1) and source.class_names == ("all",)
  images, labels = read(source, np.arange(6))
  np.testing.assert_array_equal(images, IMAGES[..., :1])
  assert not labels.any()


@pytest.mark.parametrize("arrays, settings, line", [
    ({}, {"images": "x"}, "'x': no such array in {path}; it has: images, labels"),
    ({}, {"labels": "y"}, "'y': no such array in {path}; it has: images, labels; use None"),
    ({"images": IMAGES / 255}, {}, "float64 [6, 8, 10, 3] in {path}; must be uint8 [n, h,"),
    ({"images": IMAGES[..., :2]}, {}, "ImageArrays.images = 'images': is uint8 [6, 8, 10, 2] in"),
    ({"labels": LABELS[:5]}, {}, "is int64 [5] in {path}; must be integers or class names"),
    ({"labels": LABELS - 1}, {}, "ImageArrays.labels = 'labels' in {path}: has the label -1; la"),
    ({"images": np.array([{}])}, {}, "{path}: is not a NumPy file, or an incomplete one (Object"),
])
def test_arrays_that_do_not_fit_are_refused(arrays, settings, line, tmp_path):
  path = save(tmp_path / "a.npz", **{"images": IMAGES, "labels": LABELS, **arrays})
  assert line.format(path=path) in line_of(path, **settings)


def test_files_that_cannot_be_read_are_refused(tmp_path):
  torn, folder = tmp_path / "torn.npz", tmp_path / "folder"
  save(torn, images=IMAGES, labels=LABELS)
  torn.write_bytes(torn.read_bytes()[:-200])
  broken = "is not a NumPy file, or an incomplete one ("
  assert line_of(torn).startswith(f"{torn}: {broken}")
  save(folder, images=IMAGES, labels=LABELS)
  one = folder / "images.npy"
  one.write_bytes(one.read_bytes()[:-1])
  assert line_of(one).startswith(f"{one}: {broken}")
  assert line_of(folder).startswith(f"{one}: {broken}")
  assert line_of("nowhere.npz").startswith("ImageArrays.path = 'nowhere.npz': no such file; use")


def test_a_file_that_is_written_or_cut_off_during_a_run_ends_it(tmp_path):
  source = ImageArrays(save(tmp_path / "a", images=IMAGES, labels=LABELS))
  encoded, file = EncodedExamples(source, "a"), tmp_path / "a" / "images.npy"
  line = f"{file}: changed since it was opened, so its images may no longer match the labels"
  later = file.stat().st_mtime_ns + 1
  for content in (file.read_bytes().replace(IMAGES.tobytes(), IMAGES[::-1].tobytes()),
                  file.read_bytes()[:100], None):
    file.unlink() if content is None else file.write_bytes(content)
    if content:
      os.utime(file, ns=(later, later))  # Clocks of file systems are coarse.
    assert refusal(read, source, np.arange(3)).startswith(line)
    with pytest.raises(UsageError, match="changed since it was opened"):
      encoded.read(0)


def test_classes_are_those_that_have_images(tmp_path, caplog):
  path = save(tmp_path / "a.npz", images=IMAGES, labels=LABELS // 3 * 7)
  source = ImageArrays(path)
  assert source.class_names == ("0", "7") and source.labels.tolist() == (LABELS // 3).tolist()
  assert caplog.messages == [
      f"ImageArrays.labels = 'labels' in {path}: 6 of the labels from 0 to 7 have no images, such "
      "as 1: the other 2 are the classes"]
  ImageArrays(path, labels=None)
  assert len(caplog.messages) == 1
