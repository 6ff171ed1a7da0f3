"""ZIP archives: layouts, labels, and archives that are broken."""

import io
import zipfile

import numpy as np
import pytest
from absl import logging
from PIL import Image

from models.vision.files.image_folder import ImageFolder
from models.vision.files.image_zip import ImageZip
from models.vision.images.image_source import read
from tests.programs.refusals import refusal

IMAGES = np.random.default_rng(0).integers(0, 256, [5, 8, 8, 3], np.uint8)
line_of = lambda path: refusal(ImageZip, path, 8)
all_of = lambda source: read(source, np.arange(source.size))


def encoded(image, kind="png"):
  file = io.BytesIO()
  Image.fromarray(image).save(file, kind)
  return file.getvalue()


def make_zip(path, files, compression=zipfile.ZIP_STORED):
  with zipfile.ZipFile(path, "w", compression) as archive:
    for name, content in files.items():
      archive.writestr(name, content)
  return str(path)


@pytest.mark.parametrize("around", ["", "photos/"])
def test_folders_of_classes_give_the_examples_of_the_same_folder(around, tmp_path, caplog):
  logging.use_absl_handler()
  names = ["c/1.gif", "a-b/1.png", "a/x/1.png", "a/2.jpg", "._c/1.png"]  # Not in order.
  files = {around + name: encoded(image, {"jpg": "jpeg"}.get(name[-3:], name[-3:]))
           for name, image in zip(names, IMAGES, strict=True)}
  files |= {around + "a/notes.txt": b"", "__MACOSX/a/._2.jpg": b""}
  path = make_zip(tmp_path / "a.zip", files)
  with zipfile.ZipFile(path) as archive:
    archive.extractall(tmp_path / "unpacked")
  with caplog.at_level("WARNING"):
    folder = ImageFolder(str(tmp_path / "unpacked" / around), 4)
    source = ImageZip(path, 4, memory_limit=0)
  assert caplog.messages == [f"{place}: files that are no images: 1 left out, such as {name}"
                             for place, name in ((tmp_path / "unpacked" / around, "a/notes.txt"),
                                                 (path, f"{around}a/notes.txt"))]
  assert source.class_names == folder.class_names == ("a", "a-b", "c")
  for found, expected in zip(all_of(source), all_of(folder), strict=True):
    np.testing.assert_array_equal(found, expected)


def test_what_is_no_archive_of_images_is_refused(tmp_path):
  files = {f"a/{i}.png": encoded(image) for i, image in enumerate(IMAGES)}
  whole = make_zip(tmp_path / "whole.zip", files)
  torn, text, flat = (tmp_path / f"{name}.zip" for name in ("torn", "text", "flat"))
  torn.write_bytes((tmp_path / "whole.zip").read_bytes()[:-40])
  text.write_text("no archive")
  make_zip(flat, {"1.png": encoded(IMAGES[0])})
  empty = make_zip(tmp_path / "empty.zip", {"a/notes.txt": b""})
  assert ImageZip(whole, 8).size == 5
  begin = "ImageZip.path = "
  assert line_of(str(torn)).startswith(f"{begin}'{torn}': is a truncated ZIP archive, without its")
  assert line_of(str(text)).startswith(f"{begin}'{text}': is not a ZIP archive (")
  assert line_of(str(flat)).startswith(f"{begin}'{flat}': has neither dataset.json nor a folder")
  assert line_of(empty).startswith(f"{begin}'{empty}': has no images (file types: ")
  assert line_of(str(tmp_path)).startswith(f"{begin}'{tmp_path}': is a folder; use ImageFolder")
  assert line_of("nowhere.zip").startswith(f"{begin}'nowhere.zip': no such file")
  bzip2 = make_zip(tmp_path / "b.zip", files, zipfile.ZIP_BZIP2)
  assert "a/0.png is encrypted or compressed by an unusual method" in line_of(bzip2)


def test_an_image_that_changed_is_named_or_skipped(tmp_path):
  path = tmp_path / "a.zip"
  make_zip(path, {f"a/{i}.png": encoded(image) for i, image in enumerate(IMAGES)})
  content = bytearray(path.read_bytes())
  content[content.index(encoded(IMAGES[1])) + 50] ^= 1
  path.write_bytes(content)
  assert refusal(lambda: all_of(ImageZip(str(path), 8))).startswith(
      f"{path}: a/1.png cannot be read as an image (its checksum is wrong: the archive is torn, or "
      "it has changed). To skip such files, set ImageZip.on_error = 'skip'.")
  images, _ = all_of(ImageZip(str(path), 8, on_error="skip"))
  np.testing.assert_array_equal(images, IMAGES[[0, 2, 3, 4]])
