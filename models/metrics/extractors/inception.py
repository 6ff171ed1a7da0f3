"""The Inception network of December 2015, which defines FID, KID and IS.

References: Szegedy et al. 2015 (arXiv:1512.00567) for the network; Salimans et al. 2016
(arXiv:1606.03498), Heusel et al. 2017 (arXiv:1706.08500) for the metrics. The weights file is that
of torch-fidelity and pytorch-fid: TensorFlow's graph of 2015-12-05, converted to PyTorch.
"""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

from models.metrics.extractors import torch_file
from models.metrics.extractors.extractor import IMAGES, Extracted, in_batches
from models.metrics.extractors.torch_weights import fill
from replicator import UsageError

import gin
import keras
import numpy as np
import tensorflow as tf

URL = ("https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/"
       "weights-inception-2015-12-05-6726825d.pth")
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"

_RESOLUTION = 299
_NUM_FEATURES = 2048
_NUM_CLASSES = 1008


@gin.configurable
class Inception2015:
  """The `Extractor` of FID, KID and Inception score; also gives 1,008 logits.

  Features are the 2,048 averages before the last layer. They equal those of torch-fidelity 0.4.0 to
  1e-5 of their norm, see `benchmarks/feature_parity.py`. On GPUs with TensorFloat-32, this requires
  `tf.config.experimental.enable_tensor_float_32_execution(False)`. If the weights are not the
  published ones, by SHA-256, metrics are not named after Inception.
  """

  num_features = _NUM_FEATURES
  resizing = "bilinear as in TensorFlow 1, to 299x299"

  def __init__(self, weights: str | None = None, biased_logits: bool = False) -> None:
    """Reads the weights.

    Args:
      weights: path of the weights file (96 MB), which is read without running code. By default it
        is downloaded once, to `~/.keras/models`.
      biased_logits: whether logits include the bias of the last layer. The Inception score has
        always been computed without it: torch-fidelity calls these features 'logits_unbiased', and
        those with the bias 'logits'.

    Raises:
      UsageError: the file does not exist, contains different weights, or cannot be downloaded.
    """
    path = Path(weights).expanduser() if weights else _downloaded()
    self.model = build()
    fill(self.model, torch_file.load(path), norm_of, f"Inception2015.weights = '{path}'")
    if not biased_logits:
      last = self.model.get_layer("fc")
      last.set_weights([last.get_weights()[0], np.zeros(_NUM_CLASSES)])
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    self.is_inception = found == SHA256
    self.name = "Inception 2015" + ("" if self.is_inception else f" with weights {found[:8]}")

  def __call__(self, images: np.ndarray) -> Extracted:
    return in_batches(self._forward, images)

  @tf.function(autograph=False, input_signature=[IMAGES])
  def _forward(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    features, logits = self.model(prepared(images), training=False)
    return features, logits


def prepared(images: tf.Tensor) -> tf.Tensor:
  """Makes the network's inputs: uint8 [n, h, w, 3] -> float32 [n, 299, 299, 3] in [-1, 1).

  Pixel i of the result is at i * h / 299 in the image, without a half-pixel shift.
  """
  resized = tf.raw_ops.ResizeBilinear(images=images, size=[_RESOLUTION] * 2,
                                      align_corners=False, half_pixel_centers=False)
  return (resized - 128.0) / 128.0


def norm_of(convolution: str) -> str:
  """Returns the name of the batch normalization after a convolution."""
  return convolution.removesuffix("conv") + "bn"


def build() -> keras.Model:
  """Returns the network without weights: [n, 299, 299, 3] -> features [n, 2048], logits [n, 1008].

  Layers are named after the modules in the file. Normalizations are folded into convolutions.
  """
  inputs = x = keras.Input((_RESOLUTION, _RESOLUTION, 3), dtype="float32")
  x = _unit(x, "Conv2d_1a_3x3", 32, 3, 2, "valid")
  x = _unit(x, "Conv2d_2a_3x3", 32, 3, padding="valid")
  x = _unit(x, "Conv2d_2b_3x3", 64, 3)
  x = _max(x, 2, "valid")
  x = _unit(x, "Conv2d_3b_1x1", 80, 1)
  x = _unit(x, "Conv2d_4a_3x3", 192, 3, padding="valid")
  x = _max(x, 2, "valid")
  x = _block_5(x, "Mixed_5b", 32)
  x = _block_5(x, "Mixed_5c", 64)
  x = _block_5(x, "Mixed_5d", 64)
  x = _block_6a(x, "Mixed_6a")
  x = _block_6(x, "Mixed_6b", 128)
  x = _block_6(x, "Mixed_6c", 160)
  x = _block_6(x, "Mixed_6d", 160)
  x = _block_6(x, "Mixed_6e", 192)
  x = _block_7a(x, "Mixed_7a")
  x = _block_7(x, "Mixed_7b", _average)
  x = _block_7(x, "Mixed_7c", _max)  # Max pooling is in the graph of 2015, not in the paper.
  features = keras.layers.GlobalAveragePooling2D(dtype="float32")(x)
  logits = keras.layers.Dense(_NUM_CLASSES, kernel_initializer="zeros", dtype="float32",
                              name="fc")(features)
  return keras.Model(inputs, [features, logits], name="Inception2015")


def _unit(x: tf.Tensor, name: str, filters: int, size: int | tuple[int, int], strides: int = 1,
          padding: str = "same") -> tf.Tensor:
  """Applies a convolution, batch normalization and ReLU."""
  return keras.layers.Conv2D(filters, size, strides, padding, activation="relu", dtype="float32",
                             kernel_initializer="zeros", name=f"{name}.conv")(x)


def _row(x: tf.Tensor, name: str, *units: tuple) -> tf.Tensor:
  """Applies units in sequence, each given as (filters, size, ...), arguments of `_unit`."""
  for number, unit in enumerate(units, 1):
    x = _unit(x, f"{name}_{number}" if len(units) > 1 else name, *unit)
  return x


def _average(x: tf.Tensor) -> tf.Tensor:
  """Averages windows of 3x3 pixels; at the border, only pixels inside the image."""
  return keras.layers.AveragePooling2D(3, 1, "same", dtype="float32")(x)


def _max(x: tf.Tensor, strides: int = 1, padding: str = "same") -> tf.Tensor:
  return keras.layers.MaxPooling2D(3, strides, padding, dtype="float32")(x)


_join = functools.partial(keras.ops.concatenate, axis=-1)


def _block_5(x: tf.Tensor, name: str, pooled: int) -> tf.Tensor:
  return _join([
      _row(x, f"{name}.branch1x1", (64, 1)),
      _row(x, f"{name}.branch5x5", (48, 1), (64, 5)),
      _row(x, f"{name}.branch3x3dbl", (64, 1), (96, 3), (96, 3)),
      _row(_average(x), f"{name}.branch_pool", (pooled, 1))])


def _block_6a(x: tf.Tensor, name: str) -> tf.Tensor:
  return _join([
      _row(x, f"{name}.branch3x3", (384, 3, 2, "valid")),
      _row(x, f"{name}.branch3x3dbl", (64, 1), (96, 3), (96, 3, 2, "valid")),
      _max(x, 2, "valid")])


def _block_6(x: tf.Tensor, name: str, width: int) -> tf.Tensor:
  wide, high = (1, 7), (7, 1)
  return _join([
      _row(x, f"{name}.branch1x1", (192, 1)),
      _row(x, f"{name}.branch7x7", (width, 1), (width, wide), (192, high)),
      _row(x, f"{name}.branch7x7dbl", (width, 1), (width, high), (width, wide), (width, high),
           (192, wide)),
      _row(_average(x), f"{name}.branch_pool", (192, 1))])


def _block_7a(x: tf.Tensor, name: str) -> tf.Tensor:
  return _join([
      _row(x, f"{name}.branch3x3", (192, 1), (320, 3, 2, "valid")),
      _row(x, f"{name}.branch7x7x3", (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, "valid")),
      _max(x, 2, "valid")])


def _block_7(x: tf.Tensor, name: str, pool: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
  short = _unit(x, f"{name}.branch3x3_1", 384, 1)
  long = _unit(_unit(x, f"{name}.branch3x3dbl_1", 448, 1), f"{name}.branch3x3dbl_2", 384, 3)
  return _join([
      _unit(x, f"{name}.branch1x1", 320, 1),
      _unit(short, f"{name}.branch3x3_2a", 384, (1, 3)),
      _unit(short, f"{name}.branch3x3_2b", 384, (3, 1)),
      _unit(long, f"{name}.branch3x3dbl_3a", 384, (1, 3)),
      _unit(long, f"{name}.branch3x3dbl_3b", 384, (3, 1)),
      _unit(pool(x), f"{name}.branch_pool", 192, 1)])


def _downloaded() -> Path:
  """Returns the path of the published weights in Keras' cache, after downloading if necessary."""
  try:
    return Path(keras.utils.get_file(origin=URL, file_hash=SHA256, cache_subdir="models"))
  except Exception as error:  # Keras raises a plain Exception without a network.
    raise UsageError(f"Inception2015.weights is not set, and {URL} cannot be downloaded "
                     f"({' '.join(str(error).split())[:80]}): download it elsewhere, and set "
                     "Inception2015.weights = 'PATH'") from error
