"""Sets of images: what is read, resized, and seen of them."""

import zipfile

from models.metrics.images.image_sets import Seen, Source, open_set, pick
from models.vision.builtin.digits import Digits
from models.vision.images import write
from models.vision.images.classes import Classes
from models.vision.images.image_source import InMemoryImages
from replicator.app import config
from replicator.errors import UsageError

import numpy as np
import pytest
from PIL import Image

IMAGES = np.random.default_rng(0).integers(0, 256, [300, 6, 4, 3], np.uint8)


def read(images):
  return np.concatenate(list(images.batches(np.arange(images.size))))


def test_files_of_a_folder_are_read_in_order_at_any_depth(tmp_path):
  for number, image in enumerate(IMAGES):
    folder = tmp_path / f"{number // 100}"
    folder.mkdir(exist_ok=True)
    Image.fromarray(image).save(folder / f"{number:03}.png")
  (tmp_path / "dataset.json").write_text("{}")  # Another program wrote it.
  images = open_set(str(tmp_path))
  assert (images.size, images.resolution, images.resizing) == (300, (6, 4), "none")
  np.testing.assert_array_equal(read(images), IMAGES)
  assert images.formats == {"PNG"}
  np.testing.assert_array_equal(pick(images, np.array([290, 3, 290])), IMAGES[[290, 3, 290]])


def test_arrays_and_sources_are_read_in_batches_at_any_indices(tmp_path):
  np.savez(tmp_path / "a.npz", IMAGES)
  source = Source("images", InMemoryImages(IMAGES, np.zeros(300, int), ("a",)))
  chosen = np.arange(7, 299)  # More than a batch, and no multiple of it.
  for images in (open_set(str(tmp_path / "a.npz")), source):
    batches = list(images.batches(chosen))
    assert len(batches) == 2
    np.testing.assert_array_equal(np.concatenate(batches), IMAGES[chosen])


def test_the_format_is_that_of_the_content(tmp_path):
  Image.fromarray(IMAGES[0]).save(tmp_path / "a.png", format="JPEG")
  assert open_set(str(tmp_path)).formats == {"JPEG"}


def test_gray_images_have_equal_channels(tmp_path):
  Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / "a.png")
  np.savez(tmp_path / "a.npz", images=IMAGES[:1, ..., :1])
  np.savez(tmp_path / "flat.npz", images=IMAGES[:1, ..., 0], labels=np.zeros(1, int))
  for name in ("", "a.npz", "flat.npz"):
    images = open_set(str(tmp_path / name))
    np.testing.assert_array_equal(read(images), np.repeat(IMAGES[:1, ..., :1], 3, -1))
  Image.fromarray(IMAGES[0, ..., 0] * np.uint16(257)).save(tmp_path / "a.png")
  np.testing.assert_array_equal(read(open_set(str(tmp_path)))[0, ..., 1], IMAGES[0, ..., 0])
  digits = Source("digits", Digits())
  assert pick(digits, np.array([5, 2])).shape == (2, 8, 8, 3)


def test_center_squares_are_those_of_pillow(tmp_path):
  Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
  np.savez(tmp_path / "a.npz", images=IMAGES[:1], labels=np.zeros(1))
  square = Image.fromarray(IMAGES[0, 1:5]).resize((3, 3), Image.Resampling.BICUBIC)
  for path in (tmp_path, tmp_path / "a.npz"):
    images = open_set(str(path), resolution=3)
    assert images.resolution == (3, 3) and "center squares to 3x3" in images.resizing
    np.testing.assert_array_equal(read(images), np.asarray(square)[None])


@pytest.mark.parametrize("arrays, message", [
    ({"images": np.array([print], object)}, r"a\.npz: cannot be read \(Object arrays cannot be"),
    ({"real": IMAGES, "fake": IMAGES}, r"2 arrays of images among: real \[300, 6, 4, 3\], fake")],
    ids=["code", "two arrays"])
def test_arrays_that_do_not_fit_are_refused(arrays, message, tmp_path):
  np.savez(tmp_path / "a.npz", **arrays)
  with pytest.raises(UsageError, match=message):
    open_set(str(tmp_path / "a.npz"))


def test_what_was_seen_of_batches():
  seen, gray = Seen(), Seen()
  for batch, expected in zip(seen(iter([IMAGES[:9], IMAGES[9:]])), (IMAGES[:9], IMAGES[9:]),
                             strict=True):
    np.testing.assert_array_equal(batch, expected)
  whole = Seen()
  list(whole(iter([IMAGES])))
  assert seen.count == 300 and not seen.is_gray and seen.sha256 == whole.sha256
  list(gray(iter([np.repeat(IMAGES[..., :1], 3, -1)])))
  assert gray.is_gray and gray.sha256 != seen.sha256
  list(whole(iter([np.repeat(IMAGES[..., :1], 3, -1)])))
  assert not whole.is_gray


def test_an_archive_is_read_in_the_order_of_whole_names(tmp_path):
  names = ["a/1.png", "a-b/1.png", "A/1.png", "d.png"]
  with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
    for name, image in zip(names, IMAGES, strict=False):
      archive.writestr(name, write.png(image))
  order = sorted(range(4), key=names.__getitem__)
  np.testing.assert_array_equal(read(open_set(str(tmp_path / "a.zip"))), IMAGES[order])


@pytest.mark.parametrize("names, listed, classes, labels", [
    (["a/1.png", "b/c/2.png"], None, ("a", "b"), [0, 1]),
    (["a/1.png", "2.png"], None, (), None),
    (["a/1.png", "b/2.png"], '{"labels": [["a/1.png", 1], ["b/2.png", 0]]}', ("0", "1"), [1, 0]),
    (["a/1.png", "b/2.png"], '{"labels": null}', ("a", "b"), [0, 1]),
    (["a/1.png", "b/2.png"], '{"labels": [["a/1.png", 1]]}', (), None),
    (["x/a/1.png", "x/b/2.png"], '{"labels": [["x/a/1.png", 5], ["x/b/2.png", 0]]}', ("0", "5"),
     [1, 0])])
def test_classes_are_listed_or_folders_or_none(names, listed, classes, labels, tmp_path):
  with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
    for name, image in zip(names, IMAGES, strict=False):
      archive.writestr(name, write.png(image))
    if listed:
      archive.writestr("dataset.json", listed)
  with zipfile.ZipFile(tmp_path / "a.zip") as archive:
    archive.extractall(tmp_path / "folder")
  for path in (tmp_path / "a.zip", tmp_path / "folder"):
    images = open_set(str(path))
    found = images.labels(np.arange(2))
    assert images.classes.names == classes
    assert (None if found is None else found.tolist()) == labels
    assert bool(images.unlabeled) == (listed is not None and "null" not in listed and not classes)
    assert labels is None or images.labels(np.array([1])).tolist() == labels[1:]


def test_classes_are_those_of_a_list_that_gin_names(tmp_path):
  for name in ("a", "b"):
    Image.fromarray(IMAGES[0]).save(tmp_path / f"{name}.png")
  (tmp_path / "list.csv").write_text("a.png,dog\nb.png,cat\n")
  config.parse([], ["ImageFolder.labels = 'list.csv'"])
  images = open_set(str(tmp_path))
  assert images.classes == Classes(("cat", "dog"), (1, 1))
  assert images.labels(np.arange(2)).tolist() == [1, 0]
