"""Shards that other programs wrote: in ImageNet's layout, and any others."""

import os
import pathlib
import shutil

from models.vision import convert
from models.vision.images.image_source import classes_of, read
from models.vision.images.write import png
from models.vision.shards import other_shards
from models.vision.shards.sharded_images import TFRecords
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf

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
  home, write_index = root.parent / "home", other_shards.shard_index.write_index

  def refuse(index: pathlib.Path, *arguments, **more):
    if index.parent == root:  # Whoever runs the test may write anywhere.
      raise PermissionError(13, "Permission denied")
    write_index(index, *arguments, **more)
  monkeypatch.setattr(other_shards.shard_index, "write_index", refuse)
  monkeypatch.setenv("HOME", str(home))
  for _ in range(2):
    assert TFRecords(f"{root}/train-*", 8).size == 7
    monkeypatch.setattr(other_shards, "_read", None)  # It is not read again.
  assert len(list(home.rglob("train-*.npz"))) == 3 and not list(root.glob("*.npz"))


def test_shards_with_a_dot_in_their_names_have_an_index_each(root):
  for shard in root.glob("train-*"):
    shard.rename(root / f"images.tfrecord-{shard.name.removeprefix('train-')}")
  for _ in range(2):
    images, _ = read(TFRecords(f"{root}/images.tfrecord-*", 10), np.arange(7))
    np.testing.assert_array_equal(images, IMAGES[:, 1:11])


def test_a_set_of_shards_is_chosen_and_must_be_whole(root):
  assert line_at(root).endswith(
      "train-*-of-00003 and validation-*-of-00001; choose one set, such as "
      f"'{root}/train-*-of-00003'")
  (root / "train-00001-of-00003").unlink()
  assert line_at(f"{root}/train-*").endswith(
      "of 3 shards, without train-00001-of-00003; copy all of them")


def test_a_shard_that_changed_since_it_was_indexed_is_named(root):
  TFRecords(f"{root}/train-*", 8)
  shard = root / "train-00001-of-00003"
  shutil.copy(root / "train-00000-of-00003", shard)
  line = line_at(f"{root}/train-*")
  assert line.startswith(f"{shard}: train-00001-of-00003.npz is the index of another file, or the ")
  assert line.endswith(f"copy it again, or remove {shard}.npz if the shard is right")


@pytest.mark.parametrize("records, line", [
    ([], "has no record that can be read; copy it again"),
    ([record(IMAGES[0]), b"\xff"], "the record at byte {second} is not a tf.train.Example; use"),
    ([record(IMAGES[0], image_encoded=None)], "the record at byte 0 has no image/encoded, but "),
    ([record(IMAGES[0], image_class_label=None)], "the record at byte 0 has no image/class/label "),
    ([record(IMAGES[0], image_class_label=0)], "the record at byte 0 has the label 0, but Image"),
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
    assert [source.class_names[label] for label in labels] == list(map(str, left))
    end = "" if 2 in left else ", and ends there"
    assert caplog.messages == [
        f"TFRecords skips {where}: it {what}{end}",
        f"{tmp_path}: image/class/label: {4 - len(left)} of the labels from 0 to 3 have no images, "
        f"such as 1: the other {len(left)} are the classes"]
  shard.write_bytes(whole)
  assert TFRecords(str(tmp_path), 10).size == 4


# ---- Shards of any other program -----------------------------------------------------------------


@pytest.mark.parametrize("labels, class_names", [
    ([0, 2, 1], ("0", "1", "2")), ([b"tulip", b"daisy", b"rose"], ("daisy", "rose", "tulip"))])
def test_other_keys_of_any_files_are_read(labels, class_names, tmp_path):
  for name, part in (("00-8x8-2.tfrec", [0, 1]), ("01-8x8-1.tfrec", [2])):
    write(tmp_path / name, [record(IMAGES[0], image_encoded=None, image_class_label=None,
                                   photo=png(IMAGES[i]), species=labels[i]) for i in part])
  settings = {"resolution": 10, "image": "photo", "label": "species"}
  for path in (f"{tmp_path}/*.tfrec", str(tmp_path)):
    source = TFRecords(path, **settings)
    found, numbers = read(source, np.arange(3))
    np.testing.assert_array_equal(found, IMAGES[:3, 1:11])
    assert source.class_names == class_names
    assert [class_names[number] for number in numbers] == [
        label.decode() if isinstance(label, bytes) else str(label) for label in labels]
  assert TFRecords(path, 10, image="photo", label=None).class_names == ("all",)
  assert "has no image/encoded, but image/class/text, image/filename, image/height, image/width, " \
      "photo, species; set TFRecords.image to the key" in line_at(tmp_path)
  assert "has no breed of one number or name, but " in line_at(
      tmp_path, image="photo", label="breed")


def test_labels_of_other_files_are_from_zero_on_and_have_their_names(tmp_path):
  names = (b"daisy", b"rose", b"tulip")
  write(tmp_path / "a.tfrecord", [record(image, image_class_label=label, image_class_text=text)
                                  for label, (image, text) in enumerate(
                                      zip(IMAGES, names, strict=False))])
  source = TFRecords(f"{tmp_path}/a.tfrecord", 10)
  assert source.class_names == ("daisy", "rose", "tulip") and source.labels.tolist() == [0, 1, 2]
  convert.convert(source.encoded, str(tmp_path / "out"), 2)
  assert TFRecords(f"{tmp_path}/out/*.tfrecord", 8).class_names == ("daisy", "rose", "tulip")
  assert TFRecords(f"{tmp_path}/out", 8).size == 3  # Its own index is as good as before.


@pytest.mark.parametrize("texts, class_names", [
    ([None] * 4, ("0", "7", "11")), ([b"rose", b"daisy", b"rose", None], ("rose", "daisy", "11")),
    ([b"8", b"7", b"8", b"6"], ("6", "7", "8"))])
def test_numbered_classes_are_those_that_have_images(texts, class_names, tmp_path, caplog):
  numbers = [0, 7, 0, 11]
  for name, part in (("a.tfrec", slice(0, 1)), ("b.tfrec", slice(1, 4))):
    write(tmp_path / name, [record(image, image_class_label=number, image_class_text=text)
                            for image, number, text in zip(
                                IMAGES[part], numbers[part], texts[part], strict=False)])
  for _ in range(2):  # Without an index, and with it.
    source = TFRecords(str(tmp_path), 10)
    assert source.class_names == class_names and min(classes_of(source).counts) > 0
    images, labels = read(source, np.arange(4))
    np.testing.assert_array_equal(images, IMAGES[:4, 1:11])
    assert [class_names[label] for label in labels] == [
        text.decode() if text else str(number) for text, number in zip(texts, numbers, strict=True)]
  assert "image/class/label: 9 of the labels from 0 to 11 have no images, such as 1" in caplog.text


def test_a_number_that_is_no_class_is_named(tmp_path):
  write(tmp_path / "a.tfrec", [record(IMAGES[0], image_class_label=2 ** 40)])
  assert line_at(tmp_path).startswith(
      f"{tmp_path}/a.tfrec: the record at byte 0 has the image/class/label 1099511627776; labels ")


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_compressed_files_are_named(kind, tmp_path):
  shard = tmp_path / "a.tfrec"
  with tf.io.TFRecordWriter(str(shard), kind) as writer:
    writer.write(record(IMAGES[0]))
  assert line_at(tmp_path) == (f"{shard}: is compressed, so its images cannot be read one by one; "
                               "unpack it, for example with: gunzip < a.tfrec > unpacked.tfrecord")
