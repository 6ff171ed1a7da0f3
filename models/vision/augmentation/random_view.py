"""Augmentation inside the input pipeline: random-resized crop, flip and color jitter.

An augmented image is a pure function of the run's seed and its position in training order. So it is
the same on any number of workers and replicas and after a resume, without saved state. Settings
have the names and meanings of torchvision's `RandomResizedCrop` and `ColorJitter`. References:
Krizhevsky et al. 2012 and Szegedy et al. 2014 (arXiv:1409.4842), as in Goyal et al. 2017
(arXiv:1706.02677).
"""

import math
from collections.abc import Callable, Sequence

from models.vision.images.decode import Box, Original, Shape, View, as_array
from models.vision.images.image_source import ImageSource, SourceOf, drawn_by_numpy
from models.vision.images.thread_map import in_threads
from replicator import UsageError

import gin
import numpy as np
import tensorflow as tf
from PIL import Image, ImageEnhance

_ATTEMPTS = 10  # To find a crop that fits into the image, as in torchvision.
_FLIP, _COLOR = 2 * _ATTEMPTS + 2, 2 * _ATTEMPTS + 3  # The crop uses the numbers before these.
_DRAWS = _COLOR + 8


_OTHER = 2 ** 62  # Far beyond all positions of a run.


@gin.configurable
class Augmentation:
  """A random `View` of an image.

  Args:
    scale: minimum and maximum area of a crop, relative to the image's, as in Goyal et al.; None
      resizes the whole image without cropping.
    ratio: minimum and maximum aspect ratio (width / height) of a crop; its logarithm is uniform.
    flip: the probability of a horizontal flip.
    brightness: multiplies the image by a factor in [1 - brightness, 1 + brightness].
    contrast: multiplies differences from the gray image's mean by such a factor.
    saturation: multiplies differences from the gray image by such a factor.
    hue: rotates the hue by up to this fraction of the circle, at most 0.5.

  The four color changes are applied in random order. A factor is at least 0.

  Raises:
    UsageError: a setting is invalid.
  """

  def __init__(self, scale: Sequence[float] | None = (0.08, 1.0),
               ratio: Sequence[float] = (3 / 4, 4 / 3), flip: float = 0.5,
               brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0,
               hue: float = 0.0) -> None:
    if scale is not None:
      _check_range("scale", scale, 1.0)
    _check_range("ratio", ratio, math.inf)
    for name, value, highest in (("flip", flip, 1.0), ("brightness", brightness, math.inf),
                                 ("contrast", contrast, math.inf),
                                 ("saturation", saturation, math.inf), ("hue", hue, 0.5)):
      if not 0 <= value <= highest:
        limit = "at least 0" if highest == math.inf else f"in [0, {highest}]"
        raise UsageError(f"Augmentation.{name} = {value!r}: must be {limit}")
    self.scale = scale
    self.ratio = ratio
    self.flip = flip
    kinds = ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color
    factors = [(max(0.0, 1 - each), 1 + each) for each in (brightness, contrast, saturation)]
    self._changes: list[tuple[Callable[[Image.Image, float], Image.Image], float, float]] = [
        *((lambda image, factor, kind=kind: kind(image).enhance(factor), *limits)
          for kind, limits in zip(kinds, factors, strict=True)), (_turned, -hue, hue)]

  def __call__(self, picture: Original, image_shape: Shape, seed: int, position: int) -> np.ndarray:
    """Augments a picture for a position of a run; returns uint8 `image_shape`."""
    height, width, channels = image_shape
    draws = uniform(seed, position)
    box = random_box(picture.size, self.scale, self.ratio, draws) if self.scale else None
    image = picture.part(box or (0, 0, *picture.size), (height, width))
    image = image.convert("L") if channels == 1 else image
    if draws[_FLIP] < self.flip:
      image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for number in np.argsort(draws[_COLOR + 4:]):
      change, low, high = self._changes[number]
      if low < high:
        image = change(image, low + draws[_COLOR + number] * (high - low))
    return as_array(image)


@gin.configurable
class Augmented(SourceOf):
  """An `ImageSource` whose images are augmented during training.

    train_resnet.data = @Augmented
    Augmented.data = @ImageFolder

  Crops are taken from the whole image in its file, and only the crop of a large JPEG is decoded.
  Sources without whole images are cropped after loading. `load` does not augment, so neither
  do evaluations.
  """

  def __init__(self, data: Callable[[], ImageSource] = gin.REQUIRED,
               augmentation: Callable[[], Augmentation] = Augmentation,
               center_crop: float = 1.0) -> None:
    """Makes the source.

    Args:
      data: makes the source of the images.
      augmentation: makes the augmentation.
      center_crop: the side of the center crop in `load`, relative to the shorter side of the whole
        image: 0.875 for 224 of 256 pixels. By default, images are as `data` loads them.

    Raises:
      UsageError: `center_crop` is not in (0, 1].
    """
    if not 0 < center_crop <= 1:
      raise UsageError(f"Augmented.center_crop = {center_crop!r}: must be in (0, 1]")
    super().__init__(data())
    self.augmentation = augmentation()
    self._center_crop = center_crop

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loads the example at int64 `index` from the wrapped source, or its center crop."""
    if self._center_crop == 1:
      return super().load(index)
    ignored = tf.stack([index, index], -1)  # In place of seeds, because nothing is random here.
    return self._viewed(index, ignored, self._central, crops=True)

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Augments the example at int64 `index` [] or [n]; `seed` [2] or [n, 2] is (seed, position)."""
    return self._viewed(index, seed, self.augmentation, crops=self.augmentation.scale is not None)

  def _viewed(self, index: tf.Tensor, seed: tf.Tensor, view: View, crops: bool
              ) -> dict[str, tf.Tensor]:
    """Applies a view to an example: to the whole image if it crops and the source has one."""
    if crops and hasattr(self._source, "load_view"):
      return self._source.load_view(index, seed, view)
    example = self._source.load(index)
    draw = lambda index, label, image, seed: (
        view(Original.of_array(image), image.shape, *seed.tolist()), label)
    return {**example, **drawn_by_numpy(
        in_threads(draw), [index, example["label"], example["image"], seed], self.image_shape)}

  def _central(self, picture: Original, image_shape: Shape, seed: int, position: int) -> np.ndarray:
    side = max(1, round(self._center_crop * min(picture.size)))
    top, left = ((length - side) // 2 for length in picture.size)
    image = picture.part((top, left, side, side), image_shape[:2])
    return as_array(image.convert("L") if image_shape[2] == 1 else image)


@gin.configurable
class TwoViews(SourceOf):
  """An `ImageSource` with `other`, a second augmented view of each image.

    train_self_supervision.data = @TwoViews
    TwoViews.data = @Augmented
    Augmented.data = @Digits

  Both views are drawn independently for the example's position in training order, so that they are
  the same on any number of replicas and after a resume (Grill et al. 2020, arXiv:2006.07733).

  Args:
    data: makes the source that augments.
  """

  _source: Augmented

  def __init__(self, data: Callable[[], Augmented] = gin.REQUIRED) -> None:
    super().__init__(data())

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loads the example at int64 `index` without augmentation: both views are the image."""
    example = super().load(index)
    return {**example, "other": example["image"]}

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `{"image": uint8 [h, w, c], "other": uint8 [h, w, c], "label": int32 []}`.

    For indices [n], seeds are [n, 2], and all tensors [n, ...].
    """
    example = self._source.augmented(index, seed)
    other = self._source.augmented(index, seed + tf.constant([0, _OTHER], tf.int64))
    return {**example, "other": other["image"]}


def uniform(seed: int, position: int) -> np.ndarray:
  """Draws the numbers of a position, uniform in [0, 1): float64 [31].

  They are the first outputs of Philox4x64-10 (Salmon et al. 2011) with the key (seed, position).
  """
  key = np.array([seed, position], np.uint64)
  return (np.random.Philox(key=key).random_raw(_DRAWS) >> np.uint64(11)) * 2.0 ** -53


def random_box(size: tuple[int, int], scale: Sequence[float], ratio: Sequence[float],
               draws: np.ndarray) -> Box:
  """Draws a crop of an image of `size` (height, width), given draws float64 [22] from [0, 1).

  Its area relative to the image is uniform in `scale`, and the logarithm of its aspect ratio is
  uniform in `ratio`. Of 10 attempts, the first that fits into the image is placed at random; if
  none fits, the crop is the largest center crop with an aspect ratio in `ratio`.
  """
  height, width = size
  for area, proportions in np.reshape(draws[:2 * _ATTEMPTS], [-1, 2]):
    pixels = height * width * (scale[0] + area * (scale[1] - scale[0]))
    aspect = ratio[0] * (ratio[1] / ratio[0]) ** proportions
    h, w = round(math.sqrt(pixels / aspect)), round(math.sqrt(pixels * aspect))
    if 0 < h <= height and 0 < w <= width:
      down, right = draws[2 * _ATTEMPTS:2 * _ATTEMPTS + 2]
      return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
  h = min(height, max(1, round(width / ratio[0])))
  w = min(width, max(1, round(height * ratio[1])))
  return (height - h) // 2, (width - w) // 2, h, w


def _check_range(name: str, value: Sequence[float], highest: float) -> None:
  if not (len(value) == 2 and 0 < value[0] <= value[1] <= highest):
    limit = "" if highest == math.inf else f" and at most {highest}"
    raise UsageError(f"Augmentation.{name} = {value!r}: write the lowest and the highest value, "
                     f"above 0{limit}, such as (0.5, 1.0)")


def _turned(image: Image.Image, turn: float) -> Image.Image:
  """Rotates the hue by `turn`, a fraction of the circle."""
  if image.mode == "L":
    return image
  hue, saturation, value = image.convert("HSV").split()
  shift = int(255 * turn)
  hue = hue.point([(level + shift) % 256 for level in range(256)])
  return Image.merge("HSV", (hue, saturation, value)).convert("RGB")
