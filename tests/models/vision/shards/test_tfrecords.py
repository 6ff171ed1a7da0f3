"""Shards of ours: what is torn, changed or missing is named."""

import os
import shutil
import threading
import time

from models.vision import convert
from models.vision.files.image_folder import list_folder
from models.vision.images.image_source import read
from models.vision.images.thread_map import map_in_threads
from models.vision.shards import index
from models.vision.shards.sharded_images import TFRecords
from replicator.errors import UsageError
from tests.programs.refusals import refusal

import numpy as np
import pytest
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
                                 "cannot be read as an image (its checksum does not match the")
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
  line = f"{shard}: is truncated: it has {size} of {whole} bytes, without {lost} of 3 images"
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
      f"TFRecords.path = '{out}': has no complete image: its shards are truncated; copy them again")


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
  assert line_of("nowhere").startswith("TFRecords.path = 'nowhere': no such folder; use a")
  assert line_of(tmp_path).startswith(f"TFRecords.path = '{tmp_path}': has no index.json, and")
  (out / "images-00000-of-00002.npz").write_bytes(b"torn")
  assert line_of(out).startswith(f"{out / 'images-00000-of-00002.npz'}: cannot be read (")
  (out / "index.json").write_text("{}")
  assert line_of(out).startswith(f"{out / 'index.json'}: was not written by replicator convert")


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
