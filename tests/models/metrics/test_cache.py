"""The cache of what was computed from real images: its keys, and what happens to damaged files."""

import dataclasses
import json

import numpy as np
import pytest

from models.metrics.cache import cached, key_of
from models.metrics.extractor import Extracted
from models.vision.digits import Digits
from models.vision.images import InMemoryImages


class Means:
  """An extractor of the means of the channels."""

  num_features = 3
  is_inception = False

  def __init__(self, name: str = "means", resizing: str = "none") -> None:
    self.name, self.resizing = name, resizing

  def __call__(self, images: np.ndarray) -> Extracted:
    return Extracted(images.mean((1, 2)).astype(np.float32), None)


FIRST = np.arange(20)
KEY = key_of(Digits(), FIRST, Means())


class Count:
  """Makes arrays, and counts how often."""

  def __init__(self) -> None:
    self.calls = 0

  def __call__(self) -> dict[str, np.ndarray]:
    self.calls += 1
    return {"mean": np.arange(3.0), "scatter": np.eye(3, dtype=np.float32)}


def assert_made(arrays: dict[str, np.ndarray]) -> None:
  assert sorted(arrays) == ["mean", "scatter"]
  np.testing.assert_array_equal(arrays["mean"], np.arange(3.0))
  np.testing.assert_array_equal(arrays["scatter"], np.eye(3))
  assert arrays["scatter"].dtype == np.float32


def test_arrays_are_computed_once(tmp_path):
  compute = Count()
  for _ in range(3):
    assert_made(cached(tmp_path / "cache", KEY, compute))
  assert compute.calls == 1


def test_a_key_says_what_features_depend_on():
  data, *others = dataclasses.astuple(KEY)
  assert data.startswith("Digits ") and others == [20, "8x8", "none", "means"]
  images = np.zeros([30, 8, 8, 1], np.uint8)
  black = InMemoryImages(images, np.zeros(30), ("all",))
  images = images.copy()
  images[7, 3, 3] = 1
  spotted = InMemoryImages(images, np.zeros(30), ("all",))
  keys = [KEY, key_of(Digits(), FIRST[:19], Means()), key_of(Digits(), FIRST + 1, Means()),
          key_of(Digits(), FIRST[::-1], Means()), key_of(Digits(), FIRST, Means("others")),
          key_of(Digits(), FIRST, Means(resizing="bicubic")),
          key_of(black, FIRST, Means()), key_of(spotted, FIRST, Means()),
          key_of(InMemoryImages(images[:, :4], np.zeros(30), ("all",)), FIRST, Means())]
  assert len(set(keys)) == len(keys)
  assert key_of(Digits(), FIRST, Means()) == KEY


def test_another_key_has_other_arrays(tmp_path):
  cached(tmp_path, KEY, Count())
  compute = Count()
  cached(tmp_path, dataclasses.replace(KEY, count=21), compute)
  assert compute.calls == 1


def spoil_numbers(folder):
  file = folder / "mean.npy"
  content = bytearray(file.read_bytes())
  content[-1] ^= 1
  file.write_bytes(content)


def spoil_key(folder):
  manifest = json.loads((folder / "manifest.json").read_text())
  manifest["facts"]["data"] = "other"
  (folder / "manifest.json").write_text(json.dumps(manifest))


DAMAGE = {
    "a bit": spoil_numbers,
    "an end": lambda folder: (folder / "mean.npy").write_bytes(b"\x93NUMPY"),
    "a missing file": lambda folder: (folder / "scatter.npy").unlink(),
    "the key": spoil_key,
    "an empty folder": lambda folder: [file.unlink() for file in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_cache_is_made_again(damage, tmp_path, caplog):
  cached(tmp_path, KEY, Count())
  (folder,) = tmp_path.iterdir()
  damage(folder)
  compute = Count()
  with caplog.at_level("WARNING", "absl"):
    assert_made(cached(tmp_path, KEY, compute))
  assert "made again" in caplog.text
  assert_made(cached(tmp_path, KEY, compute))
  assert compute.calls == 1


def test_what_cannot_be_kept_is_used_all_the_same(tmp_path, caplog):
  (tmp_path / "cache").write_text("a file")
  with caplog.at_level("WARNING", "absl"):
    assert_made(cached(tmp_path / "cache", KEY, Count()))
  assert "cannot be kept" in caplog.text
