"""The cache of what was computed from real images: its keys, and what happens to damaged files."""

import json

from models.metrics.cache import cached, gather_real
from models.metrics.comparison import gather
from models.metrics.extractors.extractor import Extracted

import numpy as np
import pytest


class Means:
  """An extractor of the means of the channels."""

  num_features = 3
  is_inception = False

  def __init__(self, name: str = "means", resizing: str = "none") -> None:
    self.name, self.resizing = name, resizing
    self.calls = 0

  def __call__(self, images: np.ndarray) -> Extracted:
    self.calls += 1
    return Extracted(images.mean((1, 2)).astype(np.float32), None)


KEY = {"data": "digest", "count": 20}


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


class Images:
  """An image set of an array, 7 at a time."""

  def __init__(self, images: np.ndarray) -> None:
    self.resolution = images.shape[1:3]
    self._images = images

  def batches(self, indices: np.ndarray):
    for i in range(0, len(indices), 7):
      yield self._images[indices[i:i + 7]]


def test_features_are_computed_again_when_what_they_depend_on_changes(tmp_path):
  images = np.random.default_rng(0).integers(0, 256, [30, 8, 8, 3], np.uint8)
  spotted = images.copy()
  spotted[7, 3, 3] += 1
  first = np.arange(20)
  cases = [(images, first, Means()), (images, first[:19], Means()), (images, first + 1, Means()),
           (images, first, Means("others")), (images, first, Means(resizing="bicubic")),
           (spotted, first, Means()), (images.reshape(30, 4, 16, 3), first, Means())]
  for needed in ({"features"}, {"statistics"}):
    for pixels, indices, means in cases:
      gathered, seen = gather_real(Images(pixels), indices, means, needed, tmp_path)
      assert means.calls > 0 and gathered.count == seen.count == len(indices)
      means.calls = 0
    for pixels, indices, means in cases:
      gathered, _ = gather_real(Images(pixels), indices, means, needed, tmp_path)
      assert means.calls == 0
      expected = gather([pixels[indices]], Means(), {"features"})
      np.testing.assert_allclose(gathered.statistics.scatter, expected.statistics.scatter,
                                 rtol=1e-9, atol=1e-9)
      if needed == {"features"}:
        np.testing.assert_array_equal(gathered.features, expected.features)


def spoil_numbers(folder):
  file = folder / "mean.npy"
  content = bytearray(file.read_bytes())
  content[-1] ^= 1
  file.write_bytes(content)


def spoil_key(folder):
  manifest = json.loads((folder / "manifest.json").read_text())
  manifest["facts"]["data"] = "other"
  (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", [spoil_numbers, spoil_key])
def test_a_damaged_cache_is_made_again(damage, tmp_path, caplog):
  cached(tmp_path, KEY, Count())
  (folder,) = tmp_path.iterdir()
  damage(folder)
  compute = Count()
  with caplog.at_level("WARNING", "absl"):
    assert_made(cached(tmp_path, KEY, compute))
  assert "computed again" in caplog.text
  assert_made(cached(tmp_path, KEY, compute))
  assert compute.calls == 1


def test_what_cannot_be_kept_is_used_all_the_same(tmp_path, caplog):
  (tmp_path / "cache").write_text("a file")
  with caplog.at_level("WARNING", "absl"):
    assert_made(cached(tmp_path / "cache", KEY, Count()))
  assert "cannot be cached" in caplog.text
