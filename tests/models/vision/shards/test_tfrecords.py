"""Shards of ours and in ImageNet's layout: what is torn, changed or missing is named."""

import os
import pathlib
import shutil
import threading
import time

from models.vision import convert
from models.vision.files.image_folder import list_folder
from models.vision.images.image_source import read
from models.vision.images.thread_map import map_in_threads
from models.vision.images.write import png
from models.vision.shards import imagenet, index
from models.vision.shards.sharded_images import TFRecords
from replicator.errors import UsageError
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

COLORS = np.arange(10, 70, 10, np.uint8)
line_of = lambda path, **settings: refusal(TFRecords, str(path), **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """Six images in two shards; and a folder where images keep their sizes."""
  root = tmp_path_factory.mktemp("made")
  (root / "in" / "a").mkdir(parents=True)
  for number, color in enumerate(COLORS):
    Image.new("L", (9, 9), int(color)).save(root / "in" / "a" / f"{number}.png")
  convert.convert(list_folder(str(root / "in")), str(root / "out"), 2, (8, 8, 1))
  convert.convert(list_folder(str(root / "in")), str(root / "copied"), 1)
  return root


@pytest.fixture
def out(made, tmp_path):
  """A copy of the shards, to break."""
  return shutil.copytree(made / "out", tmp_path / "out")


def test_images_of_their_own_sizes_need_a_resolution(made):
  assert line_of(made / "copied").startswith("TFRecords.resolution: must be set, since")
  assert TFRecords(str(made / "copied"), 4).image_shape == (4, 4, 3)
  assert TFRecords(str(made / "out")).image_shape == (8, 8, 1)
  assert line_of(made / "out", resolution=0) == "TFRecords.resolution = 0: must be at least 1"


def test_a_corrupt_record_is_named_or_skipped(made, tmp_path, monkeypatch):
  monkeypatch.setattr(index, "_ENDS", 16)  # Otherwise these shards are all ends.
  out = tmp_path / "out"
  convert.convert(list_folder(str(made / "in")), str(out), 2, (8, 8, 1))
  shard = out / "images-00001-of-00002.tfrecord"
  content = bytearray(shard.read_bytes())
  content[content.rindex(b"IDAT", 0, content.rindex(b"IDAT"))] ^= 1  # The second of three images.
  shard.write_bytes(content)
  assert line_of(out).startswith(f"{shard}: the image at byte {entries_of(shard)[1]['offset']} "
                                 "cannot be read as an image (its checksum is not that of the")
  found, _ = read(TFRecords(str(out), on_error="skip"), np.arange(5))
  assert found[:, 0, 0, 0].tolist() == COLORS[[0, 1, 2, 3, 5]].tolist()


def entries_of(shard):
  return np.load(shard.with_suffix(".npz"))["images"]


@pytest.mark.parametrize("torn, lost", [(1, 1), (1, 2), (1, 3), (0, 1)])
def test_what_a_truncated_shard_lacks_is_skipped_and_counted(torn, lost, out, caplog):
  shard, number = out / f"images-0000{torn}-of-00002.tfrecord", 3 - lost
  whole = shard.stat().st_size
  size = int(entries_of(shard)[number]["offset"]) + 2 if number else 0
  os.truncate(shard, size)
  line = f"{shard}: is truncated: it has {size} of {whole} bytes, and lacks {lost} of 3 images"
  assert line_of(out).startswith(f"{line}; copy it again")
  left = [number for number in range(6) if number not in range(3 * torn + 3 - lost, 3 * torn + 3)]
  for limit in (0, 10_000):  # Drawn and kept.
    caplog.clear()
    source = TFRecords(str(out), on_error="skip", memory_limit=limit)
    assert caplog.messages[0] == f"TFRecords skips images: {line}"
    found, _ = read(source, np.arange(source.size))
    assert found[:, 0, 0, 0].tolist() == COLORS[left].tolist()


def test_shards_without_a_whole_image_are_refused(out):
  for shard in out.glob("*.tfrecord"):
    os.truncate(shard, 0)
  assert line_of(out, on_error="skip") == (
      f"TFRecords.path = '{out}': has no whole image: its shards are truncated; copy them again")


def test_shards_that_are_torn_missing_or_of_another_index_are_named(out):
  first, second = (out / f"images-0000{number}-of-00002.tfrecord" for number in (0, 1))
  whole = second.read_bytes()
  second.write_bytes(whole[:-30] + b"x" + whole[-29:])
  assert line_of(out).startswith(f"{second}: images-00001-of-00002.npz is the index of another ")
  second.write_bytes(whole)
  shutil.copy(first.with_suffix(".npz"), second.with_suffix(".npz"))
  assert line_of(out).startswith(f"{second}: ")
  second.unlink()
  assert line_of(out) == f"{second}: no such file; copy it again, or convert again"


def test_folders_without_a_whole_index_are_refused(out, tmp_path):
  assert line_of("nowhere").startswith("TFRecords.path = 'nowhere': no such folder; write the")
  assert line_of(tmp_path).startswith(f"TFRecords.path = '{tmp_path}': has no index.json; make")
  (out / "images-00000-of-00002.npz").write_bytes(b"torn")
  assert line_of(out).startswith(f"{out / 'images-00000-of-00002.npz'}: cannot be read (")
  (out / "index.json").write_text("{}")
  assert line_of(out).startswith(f"{out / 'index.json'}: is not what models.vision.convert wrote")


# ---- ImageNet's layout ---------------------------------------------------------------------------


IMAGES = np.random.default_rng(0).integers(0, 256, [7, 12, 10, 3], np.uint8)
LABELS = [2, 1, 3, 1, 1, 2, 3]
SYNSETS = [b"n01440764", b"n01443537", b"n01484850"]
line_at = lambda path, **settings: refusal(TFRecords, str(path), 8, **settings)


def record(image, **features):
  """An example with the features of the published shards; some are replaced, or removed if None."""
  example = {"image/encoded": png(image), "image/height": 12, "image/width": 10,
             "image/class/label": 1, "image/class/text": b"tench, Tinca tinca",
             "image/filename": b"n01440764_10026.JPEG"}
  example |= {name.replace("_", "/"): value for name, value in features.items()}
  return tf.train.Example(features=tf.train.Features(feature={
      name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
      if isinstance(value, bytes) else
      tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
      for name, value in example.items() if value is not None})).SerializeToString()


def write(path, records):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for each in records:
      writer.write(each)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
  """Seven images in three shards to train on, and one in a shard to validate on."""
  root = tmp_path_factory.mktemp("imagenet")
  records = [record(image, image_class_label=label, image_class_synset=SYNSETS[label - 1])
             for image, label in zip(IMAGES, LABELS, strict=True)]
  for number, part in enumerate((slice(0, 3), slice(3, 6), slice(6, 7))):
    write(root / f"train-{number:05d}-of-00003", records[part])
  write(root / "validation-00000-of-00001", records[:1])
  return root


@pytest.fixture
def root(published, tmp_path):
  """A copy without an index."""
  return shutil.copytree(published, tmp_path / "imagenet",
                         ignore=shutil.ignore_patterns("*.npz"))


def test_shards_are_read_where_they_lie(root):
  for _ in range(2):  # Without an index, and with it.
    source = TFRecords(f"{root}/train-*", 10)
    assert source.class_names == tuple(map(bytes.decode, SYNSETS))
    images, labels = read(source, np.arange(7))
    np.testing.assert_array_equal(images, IMAGES[:, 1:11])
    assert (labels + 1).tolist() == LABELS
    assert len(list(root.glob("train-*.npz"))) == 3
  assert TFRecords(f"{root}/validation-*", 10).size == 1


def test_the_index_of_a_folder_that_cannot_be_written_is_in_the_home_folder(root, monkeypatch):
  home, write_index = root.parent / "home", imagenet.shard_index.write_index

  def refuse(index: pathlib.Path, *arguments, **more):
    if index.parent == root:  # Whoever runs the test may write anywhere.
      raise PermissionError(13, "Permission denied")
    write_index(index, *arguments, **more)
  monkeypatch.setattr(imagenet.shard_index, "write_index", refuse)
  monkeypatch.setenv("HOME", str(home))
  for _ in range(2):
    assert TFRecords(f"{root}/train-*", 8).size == 7
    monkeypatch.setattr(imagenet, "_read", None)  # It is not read again.
  assert len(list(home.rglob("train-*.npz"))) == 3 and not list(root.glob("*.npz"))


def test_shards_with_a_dot_in_their_names_have_an_index_each(root):
  for shard in root.glob("train-*"):
    shard.rename(root / f"images.tfrecord-{shard.name.removeprefix('train-')}")
  for _ in range(2):
    images, _ = read(TFRecords(f"{root}/images.tfrecord-*", 10), np.arange(7))
    np.testing.assert_array_equal(images, IMAGES[:, 1:11])


def test_a_set_of_shards_is_chosen_and_must_be_whole(root):
  assert line_at(root).endswith(
      f"train-*-of-00003 and validation-*-of-00001; write which, such as '{root}/train-*-of-00003'")
  (root / "train-00001-of-00003").unlink()
  assert line_at(f"{root}/train-*").endswith("of 3 shards, without train-00001-of-00003; copy all")


def test_a_shard_that_changed_since_it_was_indexed_is_named(root):
  TFRecords(f"{root}/train-*", 8)
  shard = root / "train-00001-of-00003"
  shutil.copy(root / "train-00000-of-00003", shard)
  line = line_at(f"{root}/train-*")
  assert line.startswith(f"{shard}: train-00001-of-00003.npz is the index of another file, or the ")
  assert line.endswith(f"copy it again, or remove {shard}.npz if the shard is right")


@pytest.mark.parametrize("records, line", [
    ([], "has no record that can be read; copy it again"),
    ([record(IMAGES[0]), b"\xff"], "the record at byte {second} is no tf.train.Example; write"),
    ([record(IMAGES[0], image_encoded=None)], "the record at byte 0 has no image/encoded or no "),
    ([record(IMAGES[0], image_class_label=None)], "the record at byte 0 has no image/encoded or "),
    ([record(IMAGES[0], image_class_label=0)], "the record at byte 0 has the label 0, and Image"),
])
def test_records_of_another_kind_are_named(records, line, tmp_path):
  shard = tmp_path / "train-00000-of-00001"
  write(shard, records)
  second = 16 + len(records[0]) if records else 0
  assert line_at(tmp_path).startswith(f"{shard}: {line.format(second=second)}")


def test_a_file_that_is_no_shard_is_named(tmp_path):
  shard = tmp_path / "train-00000-of-00001"
  shard.write_text("This is a text, and no shard.")
  assert line_at(tmp_path).startswith(f"{shard}: the record at byte 0 is truncated, or the file")
  assert line_at(tmp_path, on_error="skip").startswith(f"{shard}: has no record that can be read;")


@pytest.mark.parametrize("fault, left", [
    ("data", [0, 2, 3]), ("length", [0, 3]), ("cut in data", [0, 3]), ("cut in length", [0, 3])])
def test_a_fault_before_the_index_is_named_or_skipped(fault, left, tmp_path, caplog):
  """The second of three records in a shard, and a shard behind."""
  shard = tmp_path / "train-00000-of-00002"
  write(shard, [record(image, image_class_label=1 + i) for i, image in enumerate(IMAGES[:3])])
  write(tmp_path / "train-00001-of-00002", [record(IMAGES[3], image_class_label=4)])
  whole = shard.read_bytes()
  ends = [end := 0, *(end := end + 16 + int.from_bytes(whole[end:end + 8], "little")
                      for _ in range(3))]
  if fault.startswith("cut"):
    os.truncate(shard, {"cut in data": ends[2] - 50, "cut in length": ends[1] + 6}[fault])
  else:
    place = {"data": ends[1] + 40, "length": ends[1]}[fault]
    shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1:])
  what = "is corrupt" if 2 in left else "is truncated, or the file has no TFRecords"
  where = f"{shard}: the record at byte {ends[1]}"
  assert line_at(tmp_path) == (f"{where} {what}; copy it again; to skip such records, set "
                               "TFRecords.on_error = 'skip'")
  for _ in range(2):  # The index of a shard that lacks records is not kept.
    caplog.clear()
    source = TFRecords(str(tmp_path), 10, on_error="skip")
    images, labels = read(source, np.arange(source.size))
    np.testing.assert_array_equal(images, IMAGES[left, 1:11])
    assert labels.tolist() == left
    end = "" if 2 in left else ", and ends there"
    assert caplog.messages == [
        f"TFRecords skips {where}: it {what}{end}",
        f"TFRecords: {tmp_path}: classes without images: {4 - len(left)} of 4, such as 1"]
  shard.write_bytes(whole)
  assert TFRecords(str(tmp_path), 10).size == 4


def test_one_thread_at_a_time_reads_an_index(tmp_path, monkeypatch):
  inside = threading.Lock()  # Python 3.11 parses the header of an array in one thread alone.

  def load(path, **options):
    assert inside.acquire(blocking=False)
    time.sleep(0.01)
    inside.release()
    raise OSError("of the test")

  monkeypatch.setattr(index.np, "load", load)

  def read_index(i: int) -> None:
    with pytest.raises(UsageError, match="of the test"):
      index._read(tmp_path)

  assert list(map_in_threads(read_index, range(20))) == [None] * 20
