"""Folders and ZIP archives of images: classes, decoding, and errors that name the file."""

import functools
import json
import pathlib
import zipfile

from models.vision.files.image_folder import ImageFolder
from models.vision.files.image_zip import ImageZip
from models.vision.images import write
from models.vision.images.decode import center_square
from models.vision.images.image_source import read, train_validation_split
from tests.models.vision.images.test_decode import encoded
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image


def paint(file, color, size=(12, 12), mode="RGB", **options):
  file.parent.mkdir(parents=True, exist_ok=True)
  Image.new(mode, size, color).save(file, **options)


message_of = functools.partial(refusal, ImageFolder)
all_of = lambda source: read(source, np.arange(source.size))


def test_files_that_are_not_images_of_a_class_are_skipped_and_counted(tmp_path, caplog):
  paint(tmp_path / "a" / "1.png", "red")
  paint(tmp_path / "a" / "deeper" / "2.png", "green")
  paint(tmp_path / "a" / "3.BMP", "white")
  paint(tmp_path / "a" / "._1.png", "green")
  paint(tmp_path / ".cache" / "1.png", "red")
  paint(tmp_path / "a" / ".ipynb_checkpoints" / "1-checkpoint.png", "red")
  paint(tmp_path / "loose.png", "red")
  (tmp_path / "a" / "notes.txt").write_text("no image")
  (tmp_path / "a" / "photo.heic").write_text("an image of another type")
  (tmp_path / "labels.csv").write_text("a list")
  (tmp_path / "a" / "folder.png").mkdir()
  (tmp_path / "empty").mkdir()
  source = ImageFolder(str(tmp_path), 8)
  assert source.class_names == ("a",)
  images, _ = all_of(source)
  assert images[:, 0, 0].tolist() == [[255, 0, 0], [255, 255, 255], [0, 128, 0]]
  assert caplog.messages == [
      f"{tmp_path}: 2 left out: files that are not images: .txt, .heic, such as a/notes.txt",
      f"{tmp_path}: 1 left out: images without a class, such as loose.png"]


def test_links_are_followed_and_not_in_circles(tmp_path, caplog):
  paint(tmp_path / "data" / "a" / "1.png", "red")
  paint(tmp_path / "far" / "deep" / "2.png", "green")
  for link, place in (("a/linked", "far"), ("b", "far/deep"), ("a/back", "data"),
                      ("a/gone.png", "nowhere.png")):
    (tmp_path / "data" / link).symlink_to(tmp_path / place)
  (tmp_path / "far" / "up").symlink_to(tmp_path / "data" / "a")
  images, labels = all_of(ImageFolder(str(tmp_path / "data"), 8))
  assert images[:, 0, 0].tolist() == [[255, 0, 0], [0, 128, 0], [0, 128, 0]]
  assert labels.tolist() == [0, 0, 1]
  assert caplog.messages == [
      f"{tmp_path / 'data'}: 2 left out: links to a parent folder, such as a/back",
      f"{tmp_path / 'data'}: 1 left out: broken links, such as a/gone.png"]


def test_a_data_set_of_stylegan_gives_the_same_examples_as_its_archive(tmp_path):
  images = np.random.default_rng(0).integers(0, 256, [3, 8, 8, 3], np.uint8)
  for labels in (np.array([2, 0, 1]), None):
    place = tmp_path / ("labeled" if labels is not None else "unlabeled")
    write.write_folder(place, [(images, labels)])
    write.write_zip(place.with_suffix(".zip"), [(images, labels)])
    folder, archive = ImageFolder(str(place), 8), ImageZip(f"{place}.zip", 8)
    assert folder.class_names == archive.class_names
    for found, expected in zip(all_of(folder), all_of(archive), strict=True):
      np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(all_of(folder)[0], images)


@pytest.mark.parametrize("around", ["", "./", "mydata/", "./far/mydata/"])
@pytest.mark.parametrize("of_list", ["", "one up"])
def test_a_list_is_found_in_a_folder_around_the_images(around, of_list, tmp_path, caplog):
  images = np.random.default_rng(0).integers(0, 256, [6, 8, 8, 3], np.uint8)
  labels = [5, 0, 9, 5, 0, 9]
  inner = "images/" if of_list else ""
  names = [f"{inner}{number // 2:05d}/img{number:08d}.png" for number in range(6)]
  listed = json.dumps({"labels": list(zip(names, labels, strict=True))})
  with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
    for name, image in zip(names, images, strict=True):
      archive.writestr(f"{around}{name}", write.png(image))
    archive.writestr(f"{around}dataset.json", listed)
  with zipfile.ZipFile(tmp_path / "a.zip") as archive:
    archive.extractall(tmp_path / "folder")
  for source in (ImageZip(str(tmp_path / "a.zip"), 8), ImageFolder(str(tmp_path / "folder"), 8)):
    assert source.class_names == ("0", "5", "9") and source.labels.tolist() == [1, 0, 2, 1, 0, 2]
    np.testing.assert_array_equal(all_of(source)[0], images)


def test_folders_of_numbers_are_in_the_order_of_these(tmp_path):
  for number in range(12):
    paint(tmp_path / "folder" / str(number) / "a.png", (number, 0, 0))
  with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
    for number in (11, 3, *range(3), *range(4, 11)):
      archive.write(tmp_path / "folder" / str(number) / "a.png", f"{number}/a.png")
  for source in (ImageFolder(str(tmp_path / "folder"), 12), ImageZip(str(tmp_path / "a.zip"), 12)):
    images, labels = all_of(source)
    assert source.class_names == tuple(map(str, range(12)))
    assert images[:, 0, 0, 0].tolist() == labels.tolist() == list(range(12))


def test_labels_that_are_missing_are_refused(tmp_path):
  paint(tmp_path / "1.png", "red")
  (tmp_path / "some.csv").write_text("2.png,cat\n")
  for labels, line in [
      ("labels.csv", f"ImageFolder.labels = 'labels.csv': no such file in {tmp_path}; give the"),
      ("labels.txt", "ImageFolder.labels = 'labels.txt': must be a .csv or .json file"),
      ("some.csv", f"{tmp_path / 'some.csv'}: has labels for 0 of 1 images, but not for 1.png (")]:
    assert message_of(str(tmp_path), 8, labels=labels).startswith(line)
  (tmp_path / "1.png").unlink()
  assert message_of(str(tmp_path), 8, labels="some.csv").startswith(
      f"ImageFolder.path = '{tmp_path}': has no images among 1 files, such as some.csv (files ")


def test_gray_transparent_palette_and_rotated_images_become_rgb(tmp_path):
  paint(tmp_path / "a" / "1.png", 100, mode="L")
  paint(tmp_path / "a" / "2.png", (255, 0, 0, 0), mode="RGBA")
  paint(tmp_path / "a" / "3.gif", "blue")
  rotated = np.zeros([8, 8, 3], np.uint8)
  rotated[:4] = 255
  orientation = Image.Exif()
  orientation[0x0112] = 6  # Shown after a quarter turn clockwise.
  Image.fromarray(rotated).save(tmp_path / "a" / "4.png", exif=orientation)
  images, _ = all_of(ImageFolder(str(tmp_path), 8))
  assert (images[0] == 100).all()
  assert (images[1] == 255).all()
  assert (images[2] == [0, 0, 255]).all()
  assert (images[3, :, 4:] == 255).all() and (images[3, :, :4] == 0).all()


def test_a_big_jpeg_is_shrunk_well(tmp_path):
  ramp = np.broadcast_to(np.linspace(0, 255, 640).astype(np.uint8)[None, :, None], [640, 640, 3])
  (tmp_path / "a").mkdir()
  Image.fromarray(ramp).save(tmp_path / "a" / "1.jpg", quality=95)
  images, _ = all_of(ImageFolder(str(tmp_path), 8))
  np.testing.assert_allclose(images[0, :, :, 0], np.tile(np.arange(8) * 32 + 16, [8, 1]), atol=8)


def test_files_of_a_large_folder_are_read_as_they_are_drawn(tmp_path, monkeypatch):
  for number in range(6):
    paint(tmp_path / "ab"[number // 3] / f"{number}.png", (number, 0, 0))
  limit = 6 * 8 * 8 * 3
  kept, drawn = (ImageFolder(str(tmp_path), 8, memory_limit=limit - less) for less in (0, 1))
  opened, read_bytes = [], pathlib.Path.read_bytes
  monkeypatch.setattr(pathlib.Path, "read_bytes",
                      lambda file: opened.append(file.name) or read_bytes(file))
  order = np.array([5, 0, 3, 3])
  for source in (kept, drawn):
    assert read(source, order)[0][:, 0, 0, 0].tolist() == order.tolist()
  assert sorted(opened) == ["0.png", "3.png", "3.png", "5.png"]
  assert drawn.load(tf.constant(0, tf.int64))["image"].shape == (8, 8, 3)


def test_what_is_held_out_takes_no_place_of_a_corrupt_image(tmp_path):
  for number in range(20):
    paint(tmp_path / "a" / f"{number:02}.png", (number, 0, 0))
  parts = lambda: train_validation_split(ImageFolder(str(tmp_path), 8, on_error="skip",
                                                     memory_limit=0), 0.5)
  numbers = lambda source: set(all_of(source)[0][:, 0, 0, 0].tolist())
  before = [numbers(part) for part in parts()]
  for number in (3, 4, 5, 12, 13, 19):
    (tmp_path / "a" / f"{number:02}.png").write_bytes(b"torn")
  for part, all_numbers in zip(parts(), before, strict=True):
    assert numbers(part) == all_numbers - {3, 4, 5, 12, 13, 19}
  nested, _ = train_validation_split(parts()[0], 0.5)
  assert len(numbers(nested)) > 1 and not numbers(nested) & before[1]


@pytest.mark.parametrize("limit", [0, 10_000], ids=["drawn", "kept"])
def test_a_corrupt_image_is_named_or_skipped(tmp_path, limit, caplog):
  paint(tmp_path / "a" / "good.png", "red")
  paint(tmp_path / "b" / "good.png", "blue")
  noise = np.random.default_rng(0).integers(0, 256, [32, 32, 3], np.uint8)
  bad = tmp_path / "a" / "bad.jpg"
  Image.fromarray(noise).save(bad)
  bad.write_bytes(bad.read_bytes()[:500])
  message = refusal(lambda: all_of(ImageFolder(str(tmp_path), 8, memory_limit=limit)))
  assert message.startswith(f"{bad} cannot be read as an image (")
  assert message.endswith("set ImageFolder.on_error = 'skip'.")

  source = ImageFolder(str(tmp_path), 8, on_error="skip", memory_limit=limit)
  images, labels = read(source, np.array([0, 1, 2, 0]) if limit == 0 else np.array([0, 0, 1, 0]))
  assert caplog.text.count("ImageFolder skips") == 1
  assert f"ImageFolder skips {bad}, which cannot be read (" in caplog.text
  assert "1 of 3 images so far" in caplog.text
  assert images[:, 0, 0].tolist() == [[255, 0, 0], [255, 0, 0], [0, 0, 255], [255, 0, 0]]
  assert labels.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("limit", [0, 10_000], ids=["drawn", "kept"])
def test_a_folder_without_a_readable_image_is_refused(limit, tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "1.png").write_text("no image")
  line = refusal(lambda: all_of(ImageFolder(str(tmp_path), 8, "skip", limit)))
  assert f"none of its 1 image files can be read, such as {tmp_path}/a/1.png (its content" in line


@pytest.mark.parametrize("names, line", [
    (["a/", "b/notes.txt"],
     "ImageFolder.path = '{path}': has no images among 1 files, such as b/notes.txt (files that "),
    (["loose.png", ".cache/1.png"], "{path}: no image is in a class folder, such as cats/")])
def test_a_folder_without_classes_is_refused(tmp_path, names, line):
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("")
  assert message_of(str(tmp_path), 8).startswith(line.format(path=tmp_path))


def test_bad_values_are_refused(tmp_path):
  assert message_of(str(tmp_path / "nowhere"), 8).startswith(
      f"ImageFolder.path = '{tmp_path / 'nowhere'}': no such folder. Write")
  paint(tmp_path / "a" / "1.png", "red")
  assert "ignore': write 'raise' or 'skip'." in message_of(str(tmp_path), 8, on_error="ignore")
  assert message_of(str(tmp_path), 0) == "ImageFolder.resolution = 0: must be at least 1"


@pytest.mark.parametrize("resolution", [15, 90])
def test_nothing_outside_of_the_center_square_is_seen(resolution):
  image = np.full([60, 100, 3], 255, np.uint8)
  image[:, 20:80] = 0
  for pixels in (image, image.transpose(1, 0, 2)):
    square = center_square(Image.fromarray(pixels), resolution)
    assert square.size == (resolution, resolution) and not np.asarray(square).any()


# ---- Archives ------------------------------------------------------------------------------------


IMAGES = np.random.default_rng(0).integers(0, 256, [5, 8, 8, 3], np.uint8)
line_of = lambda path: refusal(ImageZip, path, 8)


def make_zip(path, files, compression=zipfile.ZIP_STORED):
  with zipfile.ZipFile(path, "w", compression) as archive:
    for name, content in files.items():
      archive.writestr(name, content)
  return str(path)


@pytest.mark.parametrize("around", ["", "photos/"])
def test_folders_of_classes_give_the_examples_of_the_same_folder(around, tmp_path, caplog):
  names = ["c/1.gif", "a-b/1.png", "a/x/1.png", "a/2.jpg", "._c/1.png"]  # Not in order.
  files = {around + name: encoded(image, {"jpg": "jpeg"}.get(name[-3:], name[-3:]))
           for name, image in zip(names, IMAGES, strict=True)}
  files |= {around + "a/notes.txt": b"", "__MACOSX/a/._2.jpg": b""}
  path = make_zip(tmp_path / "a.zip", files)
  with zipfile.ZipFile(path) as archive:
    archive.extractall(tmp_path / "unpacked")
  folder = ImageFolder(str(tmp_path / "unpacked" / around), 4)
  source = ImageZip(path, 4, memory_limit=0)
  assert caplog.messages == [f"{place}: 1 left out: files that are not images: .txt, such as {name}"
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
  for path in (torn, text):
    assert line_of(str(path)).startswith(f"{begin}'{path}': is not a ZIP archive, or a trun")
  assert line_of(str(flat)).startswith(f"{flat}: no image is in a class folder")
  assert line_of(empty).startswith(f"{begin}'{empty}': has no images among 1 files, such as a/no")
  assert line_of(str(tmp_path)).startswith(f"{begin}'{tmp_path}': is a folder; use ImageFolder")
  assert line_of("nowhere.zip").startswith(f"{begin}'nowhere.zip': no such file")


def test_an_image_that_changed_is_named_or_skipped(tmp_path):
  path = tmp_path / "a.zip"
  make_zip(path, {f"a/{i}.png": encoded(image) for i, image in enumerate(IMAGES)})
  content = bytearray(path.read_bytes())
  content[content.index(encoded(IMAGES[1])) + 50] ^= 1
  path.write_bytes(content)
  assert refusal(lambda: all_of(ImageZip(str(path), 8))).startswith(
      f"{path}: a/1.png cannot be read as an image (Bad CRC-32 for file 'a/1.png'). To skip such")
  images, _ = all_of(ImageZip(str(path), 8, on_error="skip"))
  np.testing.assert_array_equal(images, IMAGES[[0, 2, 3, 4]])
