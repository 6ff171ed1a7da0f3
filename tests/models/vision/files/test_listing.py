"""What is a class and what is none, and what is said of files that are left out."""

import os
import zipfile

from models.vision import convert
from models.vision.files.image_folder import ImageFolder, list_folder
from models.vision.files.image_zip import ImageZip
from models.vision.files.listing import printable
from models.vision.images.image_source import read
from models.vision.preview import __main__ as preview
from models.vision.shards.sharded_images import TFRecords
from tests.models.vision.images.test_decode import encoded
from tests.programs.refusals import refusal

import numpy as np
import pytest
from PIL import Image, features

PIXELS = np.random.default_rng(0).integers(0, 256, [8, 8, 3], np.uint8)
PNG = encoded(PIXELS)
KINDS = {".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF", ".jfif": "JPEG", ".jpe": "JPEG",
         ".PNG": "PNG", ".ppm": "PPM", ".pgm": "PPM", ".avif": "AVIF"}


def put(root, *names, content=PNG):
  for name in names:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


def zipped(root):
  with zipfile.ZipFile(f"{root}.zip", "w") as archive:
    for file in sorted(root.rglob("*")):
      if file.is_file():
        archive.write(file, file.relative_to(root).as_posix())
  return f"{root}.zip"


@pytest.mark.parametrize("ending", KINDS)
def test_a_class_of_any_format_is_read(ending, tmp_path):
  if ending == ".avif" and not features.check("avif"):
    pytest.skip("this Pillow reads no AVIF")
  put(tmp_path, "a/1.png")
  put(tmp_path, f"b/1{ending}", content=encoded(PIXELS, KINDS[ending]))
  put(tmp_path, "c/1.jpg", content=encoded(PIXELS, "WEBP"))
  source = ImageFolder(str(tmp_path), 8)
  assert source.class_names == ("a", "b", "c")
  images, labels = read(source, np.arange(3))
  assert labels.tolist() == [0, 1, 2] and np.abs(images.astype(int) - PIXELS).mean() < 50


def test_folders_of_tools_are_no_classes_and_not_worth_a_word(tmp_path, caplog):
  put(tmp_path / "pets", "cat/1.png", "dog/1.png", "$RECYCLE.BIN/1.png", "lost+found/1.png",
      "System Volume Information/1.png", "cat/@eaDir/1.png/thumb.png", "__MACOSX/cat/._1.png",
      ".ipynb_checkpoints/1.png", "cat/Thumbs.db", ".DS_Store", "cat/desktop.ini")
  for source in (ImageFolder(str(tmp_path / "pets"), 8), ImageZip(zipped(tmp_path / "pets"), 8)):
    assert (source.class_names, source.size) == (("cat", "dog"), 2)
  assert not caplog.messages


@pytest.mark.parametrize("names", [("train", "val"), ("Training", "test_images"),
                                   ("train2017", "val2017"), ("train", "validation", "test")])
def test_parts_of_a_data_set_are_no_classes(names, tmp_path):
  put(tmp_path / "all", *(f"{name}/{kind}/1.png" for name in names for kind in ("cat", "dog")))
  for source, path in ((ImageFolder, tmp_path / "all"), (ImageZip, zipped(tmp_path / "all"))):
    line = refusal(source, str(path), 8)
    assert line == (f"{path}: its folders {', '.join(sorted(names))} are splits of a data set, not "
                    f"classes; use the path of one, such as {path}/{min(names)}")
  assert ImageFolder(str(tmp_path / "all" / names[0]), 8).class_names == ("cat", "dog")


def test_a_class_that_loses_most_of_its_files_is_named_or_skipped(tmp_path, caplog):
  put(tmp_path / "all", "cat/1.png", "dog/1.png", "dog/1.heic", "dog/2.heic", "cat/1.txt",
      "cat/2.txt", "notes/a.txt", "cat/1.heic")
  for source, path in ((ImageFolder, tmp_path / "all"), (ImageZip, zipped(tmp_path / "all"))):
    line = (f"{path}: classes lose most of their files: dog 2 of 3 (files that are not images: "
            ".heic), such as dog/1.heic")
    assert refusal(source, str(path), 8) == (
        f"{line}; fix or remove them, or set {source.__name__}.on_error = 'skip' to skip them")
    caplog.clear()
    assert source(str(path), 8, "skip").class_names == ("cat", "dog")
    assert line in caplog.messages


def test_links_to_nothing_and_closed_folders_are_told_apart(tmp_path, monkeypatch):
  put(tmp_path, *(f"{kind}/{i}.png" for kind in ("cat", "dog", "owl") for i in range(3)))
  for name in ("dog/1.png", "dog/2.png", *(f"owl/{i}.png" for i in range(3))):
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/nowhere/a.png")
  assert refusal(ImageFolder, str(tmp_path), 8).startswith(
      f"{tmp_path}: classes lose most of their files: dog 2 of 3 (broken links), owl 3 of 3 "
      "(broken links), such as dog/1.png; fix or remove them, or set")
  access = os.access  # Whoever runs the test may read anything.
  monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode)
                      and not str(path).endswith("cat"))
  assert refusal(ImageFolder, str(tmp_path), 8).startswith(
      f"{tmp_path}: classes lose most of their files: cat 1 of 1 (folders without read perm")


def test_names_that_are_no_utf8_are_shown_and_converted(tmp_path, capsys):
  root = os.fsencode(tmp_path / "in")
  for folder, name in ((b"caf\xe9", b"1-\xe9.png"), (b"tea", b"2\n.png")):
    os.makedirs(os.path.join(root, folder))
    with open(os.path.join(root, folder, name), "wb") as file:
      file.write(PNG)
  source = list_folder(str(tmp_path / "in"))
  assert source.class_names == ("caf\\xe9", "tea")
  assert [source.name(i) for i in range(2)] == [f"{tmp_path}/in/caf\\xe9/1-\\xe9.png",
                                                f"{tmp_path}/in/tea/2\\n.png"]
  assert source.read(0) == source.read(1) == PNG
  assert convert.main([str(tmp_path / "in"), str(tmp_path / "out"), "--shards=1"]) == 0
  assert TFRecords(str(tmp_path / "out"), 8).class_names == source.class_names
  assert preview.main([str(tmp_path / "in"), f"--out={tmp_path / 'a.html'}"]) == 0
  shown = capsys.readouterr().out
  assert "caf\\xe9/1-\\xe9.png, tea/2\\n.png" in shown  # They are copies.
  assert "caf\\xe9" in (tmp_path / "a.html").read_text()


def test_names_that_people_read_stay_as_they_are():
  for name in ("caffè 猫 🐈", "a\u3000b", "👩‍👧"):
    assert printable(name) == name


def test_an_archive_of_windows_has_folders(tmp_path):
  with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
    for name in ("cat\\1.png", "dog\\more\\2.png"):
      archive.writestr(name, PNG)
  source = ImageZip(str(tmp_path / "a.zip"), 8)
  assert (source.class_names, source.size) == (("cat", "dog"), 2)


def test_a_large_photo_is_the_same_for_training_and_evaluation(tmp_path):
  from models.metrics.images.image_sets import open_set
  noise = np.random.default_rng(1).integers(0, 256, [200, 300, 3], np.uint8)
  (tmp_path / "a").mkdir()
  Image.fromarray(noise).resize((1200, 900)).save(tmp_path / "a" / "1.jpg")
  trained, _ = read(ImageFolder(str(tmp_path), 16), np.arange(1))
  [evaluated] = open_set(str(tmp_path), 16).batches(np.arange(1))
  np.testing.assert_array_equal(evaluated, trained)
