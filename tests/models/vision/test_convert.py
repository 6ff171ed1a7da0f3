"""Conversion to shards: the same files whatever happens on the way."""

import json
import shutil

from models.vision import convert as convert_lib
from models.vision.builtin.shapes import Shapes
from models.vision.files.image_folder import ImageFolder, list_folder
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.image_source import read
from models.vision.shards import sharded_images
from models.vision.shards.sharded_images import TFRecords
from replicator.errors import UsageError

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """A folder of 11 images of three formats and two classes."""
  root = tmp_path_factory.mktemp("photos")
  noise = np.random.default_rng(0)
  for number in range(11):
    kind = ("png", "jpg", "gif")[number % 3]
    file = root / ("cat" if kind == "png" else "dog") / f"{number:02}.{kind}"
    file.parent.mkdir(exist_ok=True)
    Image.fromarray(noise.integers(0, 256, [20, 16 + number, 3], np.uint8)).save(file)
  return root


def run(capsys, *words):
  """The exit status of a command line, and its last lines."""
  status = convert_lib.main([str(word) for word in words])
  shown = capsys.readouterr()
  return status, shown.out.splitlines()[-1:], shown.err.strip()


def all_of(source):
  return read(source, np.arange(source.size))


def content_of(folder):
  return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("flags", [[], ["--resolution=8"]], ids=["copied", "resized"])
def test_shards_give_the_examples_of_the_folder(photos, tmp_path, capsys, flags):
  status, [line], _ = run(capsys, photos, tmp_path / "out", "--shards=3", *flags)
  assert status == 0
  assert f"11 images of 2 classes in {tmp_path / 'out'}; to train on them: TFRecords.path" in line
  source = TFRecords(str(tmp_path / "out"), None if flags else 8)
  folder = ImageFolder(str(photos), 8)
  assert (source.size, source.class_names) == (folder.size, folder.class_names)
  for found, expected in zip(all_of(source), all_of(folder), strict=True):
    np.testing.assert_array_equal(found, expected)


def test_any_reader_of_tfrecords_reads_the_shards(photos, tmp_path, capsys):
  run(capsys, photos, tmp_path / "out", "--shards=2")
  files = [str(tmp_path / "out" / sharded_images.shard_name(number, 2)) for number in range(2)]
  features = {"image/encoded": tf.io.FixedLenFeature([], tf.string),
              "image/class/label": tf.io.FixedLenFeature([], tf.int64),
              "image/class/text": tf.io.FixedLenFeature([], tf.string)}
  rows = [tf.io.parse_single_example(record, features)
          for record in tf.data.TFRecordDataset(files)]
  source = list_folder(str(photos))
  assert [row["image/encoded"].numpy() for row in rows] == [source.read(i) for i in range(11)]
  assert [int(row["image/class/label"]) for row in rows] == source.labels.tolist()
  assert rows[-1]["image/class/text"] == "dog"


def test_an_interrupted_conversion_continues_to_the_same_bytes(photos, tmp_path, capsys):
  run(capsys, photos, tmp_path / "whole", "--shards=4", "--resolution=8")
  whole, images, written = content_of(tmp_path / "whole"), list_folder(str(photos)), []

  class Killed(BaseException):
    """Stands for a signal, which no code expects."""

  def dies_after(count: int) -> EncodedImages:
    source = list_folder(str(photos))
    left = iter(range(count))

    def read_one(index: int) -> bytes:
      if next(left, None) is None:
        raise Killed
      written.append(index)
      return images.read(index)
    source.read = read_one
    return source

  for count in (1, 4, 3, 0):
    with pytest.raises(Killed):
      convert_lib.convert(dies_after(count), str(tmp_path / "out"), 4, (8, 8, 3))
    with pytest.raises(UsageError, match="its conversion is not finished; run the same command"):
      TFRecords(str(tmp_path / "out"))
  status, _, _ = run(capsys, photos, tmp_path / "out", "--shards=4", "--resolution=8")
  assert status == 0
  assert content_of(tmp_path / "out") == whole
  assert written.count(0) == 2  # Whole shards are not written again.


def test_what_is_in_no_files_is_converted_without_loss(tmp_path, capsys):
  status, _, error = run(capsys, "shapes", tmp_path / "out", "--shards=2",
                         "--gin_param=Shapes.size = 13", "--gin_param=Shapes.resolution = 8")
  assert status == 0, error
  source, written = Shapes(), TFRecords(str(tmp_path / "out"))
  assert written.image_shape == source.image_shape and written.class_names == source.class_names
  for found, expected in zip(all_of(written), all_of(source), strict=True):
    np.testing.assert_array_equal(found, expected)


def test_arrays_that_are_no_squares_have_no_shape_of_their_own(tmp_path, capsys):
  images = np.random.default_rng(0).integers(0, 256, [5, 6, 8, 3], np.uint8)
  np.savez(tmp_path / "a.npz", images=images, labels=np.arange(5))
  assert run(capsys, tmp_path / "a.npz", tmp_path / "out", "--shards=2")[0] == 0
  facts = json.loads((tmp_path / "out" / "index.json").read_text())
  assert facts["image_shape"] is None
  found, _ = all_of(TFRecords(str(tmp_path / "out"), 6))
  np.testing.assert_array_equal(found, images[:, :, 1:7])


def test_labels_of_a_folder_are_those_of_a_file(photos, tmp_path, capsys):
  names = [str(file.relative_to(photos)) for file in photos.rglob("*.*")]
  table = tmp_path / "labels.csv"
  table.write_text("".join(f"{name},{name[-3:]}\n" for name in names))
  status, _, error = run(capsys, photos, tmp_path / "out", "--shards=1", f"--labels={table}")
  assert status == 0, error
  source = TFRecords(str(tmp_path / "out"), 8)
  assert source.class_names == ("gif", "jpg", "png")
  assert all_of(source)[1].tolist() == [source.class_names.index(name[-3:])
                                        for name in sorted(names)]


def test_a_setting_of_the_data_counts(photos, tmp_path, capsys):
  names = [str(file.relative_to(photos)) for file in photos.rglob("*.*")]
  table = tmp_path / "labels.csv"
  table.write_text("".join(f"{name},{name[-3:]}\n" for name in names))
  status, [line], error = run(capsys, photos, tmp_path / "out", "--shards=1",
                              f"--gin_param=ImageFolder.labels = '{table}'")
  assert status == 0 and "11 images of 3 classes" in line, error


def test_only_one_process_converts_to_a_folder(photos, tmp_path, capsys):
  refused = []

  def shown(done, total):
    refused.append(run(capsys, photos, tmp_path / "out", "--shards=2")[::2])

  convert_lib.convert(list_folder(str(photos)), str(tmp_path / "out"), 2, shown=shown)
  for status, line in refused:
    assert status == 2 and f"{tmp_path / 'out'}: another process is converting images to" in line
  assert TFRecords(str(tmp_path / "out"), 8).size == 11


def test_a_setting_that_nothing_uses_is_refused(tmp_path, capsys):
  status, _, error = run(capsys, "digits", tmp_path / "out", "--shards=1",
                         "--gin_param=Shapes.resolution = 8")
  assert status == 2 and "Shapes.resolution is never used" in error
  assert not (tmp_path / "out").exists()


def test_what_cannot_be_converted_is_refused(photos, tmp_path, capsys):
  out = tmp_path / "out"

  def line(*words):
    status, _, error = run(capsys, *words)
    assert status == 2 and "\n" not in error
    return error.removeprefix("error: ")

  assert line(photos, out, "--shards=12").startswith("--shards=12: must be from 1 to 11")
  assert line(photos, out, "--shards=1", "--resolution=0").startswith("--resolution=0: must be")
  assert "no such folder" in line("nowhere", out, "--shards=1")
  assert line(photos, photos, "--shards=1").startswith(f"{photos}: holds something else; choose")
  run(capsys, photos, out, "--shards=1")
  assert line(photos, out, "--shards=1").startswith(f"{out}: holds a finished conversion; choose")


def test_a_corrupt_file_and_then_a_change_of_the_source_are_refused(tmp_path, capsys):
  bad = tmp_path / "in" / "a" / "2.png"
  bad.parent.mkdir(parents=True)
  Image.new("RGB", (9, 9)).save(tmp_path / "in" / "a" / "1.png")
  bad.write_text("no image")
  words = [tmp_path / "in", tmp_path / "out", "--shards=1", "--resolution=8"]
  status, _, line = run(capsys, *words)
  assert status == 2 and line.startswith(f"error: {bad} cannot be read as an image (its content")
  assert line.endswith("to skip such images, use --skip_unreadable")
  bad.unlink()
  status, _, line = run(capsys, *words)
  assert status == 2 and f"{tmp_path / 'out'}: holds part of a different conversion, or the" in line


@pytest.mark.parametrize("flags", [[], ["--resolution=8"]], ids=["copied", "resized"])
def test_unreadable_images_are_left_out_and_named_if_asked(flags, tmp_path, capsys, caplog):
  folder, out = tmp_path / "in" / "a", tmp_path / "out"
  folder.mkdir(parents=True)
  for number in range(5):
    Image.new("RGB", (9, 9), (number, 0, 0)).save(folder / f"{number}.png")
  (folder / "1.png").write_text("no image")
  torn = folder / "3.png"
  torn.write_bytes(torn.read_bytes()[:-30])
  words = [tmp_path / "in", out, "--shards=3", *flags]
  if flags:  # It goes on where it stopped.
    assert "to skip such images, use --skip_unreadable" in run(capsys, *words)[2]
  else:  # What was copied was not decoded.
    source = list_folder(str(tmp_path / "in"))
    source.read = lambda index: (folder / ("gone" if index == 4 else "1.png")).read_bytes()
    with pytest.raises(UsageError, match=r"4.png cannot be read as an image \(.*No such file"):
      convert_lib.convert(source, str(out), 3)
    assert "holds part of a different conversion" in run(capsys, *words, "--skip_unreadable")[2]
    shutil.rmtree(out)
  status, [line], _ = run(capsys, *words, "--skip_unreadable")
  assert status == 0 and f"3 images of 1 classes in {out}, without 2 that cannot be read;" in line
  assert [text.partition(", which cannot be read (")[0] for text in caplog.messages] == [
      f"convert skips {folder / name}" for name in ("1.png", "3.png")]
  assert all_of(TFRecords(str(out), 8))[0][:, 0, 0, 0].tolist() == [0, 2, 4]


def test_a_source_of_unreadable_images_alone_is_refused(tmp_path, capsys):
  (tmp_path / "in" / "a").mkdir(parents=True)
  (tmp_path / "in" / "a" / "1.png").write_text("no image")
  status, _, error = run(capsys, tmp_path / "in", tmp_path / "out", "--shards=1",
                         "--skip_unreadable")
  assert status == 2 and f"{tmp_path / 'in'}: none of its 1 images can be read, such as " in error
