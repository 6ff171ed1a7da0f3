"""Files of images: what is in them, and that they are whole."""

import json
import zipfile

from models.vision.files.image_folder import ImageFolder
from models.vision.images import write

import numpy as np
import pytest
from PIL import Image

IMAGES = np.random.default_rng(0).integers(0, 256, [5, 4, 6, 3], np.uint8)
LABELS = np.array([3, 7, 3, 7, 3])


def test_a_picture_is_read_back(tmp_path):
  path = tmp_path / "new" / "grid.png"  # In a folder that is made.
  write.write_picture(path, IMAGES[0])
  np.testing.assert_array_equal(np.asarray(Image.open(path)), IMAGES[0])
  assert list(path.parent.iterdir()) == [path]


def test_an_animation_repeats_its_pictures(tmp_path):
  path = tmp_path / "walk.webp"
  write.write_animation(path, IMAGES, milliseconds=50)
  with Image.open(path) as animation:
    assert (animation.format, animation.n_frames, animation.info["loop"]) == ("WEBP", 5, 0)
    for number, image in enumerate(IMAGES):
      animation.seek(number)
      np.testing.assert_array_equal(np.asarray(animation.convert("RGB")), image)


def test_a_folder_has_the_labels_in_the_names_and_in_one_file(tmp_path):
  write.write_folder(tmp_path / "out", [(IMAGES[:3], LABELS[:3]), (IMAGES[3:], LABELS[3:])])
  names = [f"{i:08d}-class{label}.png" for i, label in enumerate(LABELS)]
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*names, "dataset.json"]
  written = json.loads((tmp_path / "out" / "dataset.json").read_text())
  assert written == {"labels": [[name, label] for name, label in zip(names, LABELS, strict=True)]}
  for name, image in zip(names, IMAGES, strict=True):
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "out" / name)), image)


@pytest.mark.parametrize("names, files, content", [
    (("ant", "big cat/2"), ["00000000-ant.png", "00000001-big-cat-2.png"],
     {"labels": [["00000000-ant.png", 0], ["00000001-big-cat-2.png", 1]],
      "classes": ["ant", "big cat/2"]}),
    (("0", "11"), ["00000000-class0.png", "00000001-class11.png"],
     {"labels": [["00000000-class0.png", 0], ["00000001-class11.png", 11]]})])
def test_names_of_classes_are_beside_the_labels_or_are_these(names, files, content, tmp_path):
  write.write_folder(tmp_path / "out", [(IMAGES[:2], np.array([0, 1]))], names)
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*files, "dataset.json"]
  assert json.loads((tmp_path / "out" / "dataset.json").read_text()) == content
  source = ImageFolder(str(tmp_path / "out"), 4)
  assert source.class_names == names and source.labels.tolist() == [0, 1]


def test_a_zip_has_the_same_files(tmp_path):
  gray = IMAGES[..., :1]
  write.write_zip(tmp_path / "out.zip", [(gray, None)])
  with zipfile.ZipFile(tmp_path / "out.zip") as archive:
    assert archive.namelist() == [*(f"{i:08d}.png" for i in range(5)), "dataset.json"]
    assert json.loads(archive.read("dataset.json")) == {"labels": None}
    with archive.open("00000002.png") as file, Image.open(file) as image:
      assert image.mode == "L"
      np.testing.assert_array_equal(np.asarray(image), gray[2, ..., 0])
    assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


def failing():
  yield IMAGES, None
  raise RuntimeError("out of memory")


@pytest.mark.parametrize("write", [write.write_folder, write.write_zip])
def test_what_fails_midway_leaves_nothing(write, tmp_path):
  with pytest.raises(RuntimeError):
    write(tmp_path / "out", failing())
  assert not list(tmp_path.iterdir())
