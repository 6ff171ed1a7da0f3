"""The Inception of 2015: its weights, and the numbers of torch-fidelity's network.

The goldens were computed by torch-fidelity 0.4.0 with PyTorch 2.13.0 on a CPU:
`python -m benchmarks.feature_parity --goldens`.
"""

import functools
import hashlib

from benchmarks.feature_parity import digest, random_tensors, seed_images, shapes
from models.metrics.extractors import inception
from models.metrics.extractors.inception import Inception2015
from replicator.errors import UsageError
from tests.models.metrics.torch_writer import write_weights
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest

# Four numbers and the norm, for each of `seed_images`.
FEATURES = [[0.49535677, 67.822067, 19.631874, 0.81093729, 971.99022],
            [0.42838407, 56.234734, 17.000317, 0.6912874, 805.49166]]
LOGITS_UNBIASED = [[17.059525, 23.236649, 3.5717621, -27.985989, 917.60402],
                   [14.185189, 19.767853, 2.6887004, -22.900547, 759.75473]]
LOGITS = [[16.735758, 23.020014, 3.7340217, -28.408712, 918.0173],
          [13.861423, 19.551218, 2.85096, -23.323271, 760.17675]]


@pytest.fixture(scope="module")
def network():
  return inception.build()


@pytest.fixture(scope="module")
def weights(network, tmp_path_factory):
  path = tmp_path_factory.mktemp("inception") / "weights.pth"
  write_weights(path, random_tensors(shapes(network, inception.norm_of)))
  return str(path)


@pytest.fixture
def built_once(network, monkeypatch):
  monkeypatch.setattr(inception, "build", lambda: network)


@pytest.mark.slow
def test_features_are_those_of_torch_fidelity(weights, built_once):
  extractor = Inception2015(weights)
  features, logits = extractor(seed_images())
  assert features.shape == (2, extractor.num_features) and logits.shape == (2, 1008)
  assert features.dtype == logits.dtype == np.float32
  np.testing.assert_allclose([digest(row) for row in features], FEATURES, rtol=1e-5)
  np.testing.assert_allclose([digest(row) for row in logits], LOGITS_UNBIASED, rtol=1e-5)

  # The features of random weights, too, depend on where a pixel is.
  assert np.linalg.norm(features[0] - extractor(np.roll(seed_images(), 1, 2))[0][0]) > 1

  _, biased = Inception2015(weights, biased_logits=True)(seed_images())
  np.testing.assert_allclose([digest(row) for row in biased], LOGITS, rtol=1e-5)


def test_only_the_published_weights_are_called_inception(weights, built_once, monkeypatch):
  with open(weights, "rb") as file:
    digits = hashlib.sha256(file.read()).hexdigest()
  other = Inception2015(weights)
  assert (other.name, other.is_inception) == (f"Inception 2015 with weights {digits[:8]}", False)
  monkeypatch.setattr(inception, "SHA256", digits)
  published = Inception2015(weights)
  assert (published.name, published.is_inception) == ("Inception 2015", True)


def test_other_files_are_refused(built_once, tmp_path):
  with pytest.raises(UsageError, match=r"no\.pth cannot be read"):
    Inception2015(str(tmp_path / "no.pth"))
  path = tmp_path / "other.pth"
  write_weights(path, {"fc.weight": np.zeros([10, 3], np.float32)})
  with pytest.raises(UsageError, match=r"Inception2015.weights = '.*other.pth' has no such tensor "
                                       "where Inception2015 needs 'Conv2d_1a_3x3.conv.weight'"):
    Inception2015(str(path))


def test_images_are_resized_as_by_tensorflow_1():
  images = np.random.default_rng(0).integers(0, 256, [1, 40, 500, 3], np.uint8)

  def resized(array: np.ndarray, axis: int) -> np.ndarray:
    size = array.shape[axis]
    place = np.arange(299) * (size / 299)
    low = place.astype(int)
    share = (place - low).reshape([-1 if i == axis else 1 for i in range(4)])
    high = np.minimum(low + 1, size - 1)
    return array.take(low, axis) * (1 - share) + array.take(high, axis) * share

  expected = (resized(resized(images.astype(np.float64), 1), 2) - 128) / 128
  np.testing.assert_allclose(inception.prepared(images), expected, atol=1e-4)
  same = np.random.default_rng(1).integers(0, 256, [1, 299, 299, 3], np.uint8)
  np.testing.assert_array_equal(inception.prepared(same), (same.astype(np.float32) - 128) / 128)


# ---- The download -------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch, tmp_path):
  (tmp_path / "cache").mkdir()
  download = functools.partial(keras.utils.get_file, cache_dir=str(tmp_path / "cache"))
  monkeypatch.setattr(inception.keras.utils, "get_file", download)


def test_the_file_is_downloaded_once_and_checked(cache, built_once, monkeypatch, tmp_path):
  source = tmp_path / "weights.pth"
  write_weights(source, {"fc.weight": np.zeros([10, 3], np.float32)})
  monkeypatch.setattr(inception, "URL", source.as_uri())
  with pytest.raises(UsageError, match=r"cannot be downloaded .*hash"):
    Inception2015()
  monkeypatch.setattr(inception, "SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
  with pytest.raises(UsageError, match=r"cache/models/weights\.pth' has no such tensor"):
    Inception2015()
  source.unlink()
  with pytest.raises(UsageError, match=r"cache/models/weights\.pth' has no such tensor"):
    Inception2015()


def test_without_a_network_one_line_says_what_to_do(cache, monkeypatch):
  monkeypatch.setattr(inception, "URL", "http://127.0.0.1:9/weights.pth")
  message = refusal(Inception2015)
  assert "http://127.0.0.1:9/weights.pth cannot be downloaded" in message
  assert message.endswith("set Inception2015.weights = 'PATH'")
