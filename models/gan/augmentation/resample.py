"""Band-limited affine resampling of images in one pass, for ADA's geometric augmentations.

Karras et al. 2020 (arXiv:2006.06676), appendix B: images are upsampled by 2 with an orthogonal
wavelet, read there by bilinear interpolation, and downsampled with the same wavelet. So the
identity map changes an image by rounding only. Images are reflected at their borders. Everything is
linear in the images, and differentiable to any order.
"""

import functools

from models.vision.augmentation.flip_and_shift import reflected

import numpy as np
import tensorflow as tf

# The low-pass filter of the symlet wavelet with 6 vanishing moments; its sum is sqrt(2).
SYM6 = np.array([
    0.015404109327027373, 0.0034907120842174702, -0.11799011114819057, -0.048311742585633,
    0.4910559419267466, 0.787641141030194, 0.3379294217276218, -0.07263752278646252,
    -0.021060292512300564, 0.04472490177066578, 0.0017677118642428036, -0.007800708325034148])
_FIRST = 5  # The tap at the left of a pixel's two samples.
# Distance in samples from that tap to the pixel, at the filter's center of mass. The authors' code
# uses the middle of the taps instead, so that mirrored images shift by 0.4 pixels.
_OFFSET = float(SYM6 @ np.arange(12) / SYM6.sum()) - _FIRST
_AROUND = 3  # Pixels around the output that the filter reaches.
_MARGIN = 4  # Pixels around the input that are upsampled; farther positions are reflected into it.


def resample(images: tf.Tensor, sources: tf.Tensor) -> tf.Tensor:
  """Warps each image by an affine map: `[n, h, w, c], [n, 2, 3] -> [n, h, w, c]`.

  `sources` maps output pixels to their sources: `(x', y') = sources (x, y, 1)`, in pixels to the
  right and down from the middle of the image.
  """
  _, h, w, _ = images.shape
  up_rows, up_columns = (tf.constant(_up(size), images.dtype) for size in (h, w))
  down_rows, down_columns = (tf.constant(_down(size), images.dtype) for size in (h, w))
  fine = tf.einsum("yh,nhwc,xw->nyxc", up_rows, images, up_columns)
  moved = _read(fine, *_positions(tf.cast(sources, images.dtype), h, w))
  return tf.einsum("hy,nyxc,wx->nhwc", down_rows, moved, down_columns)


@functools.cache
def _up(size: int) -> np.ndarray:
  """Returns the upsampling matrix of an axis with margins, `[2 (size + 2 margins), size]`."""
  matrix = np.zeros([2 * (size + 2 * _MARGIN), size])
  for sample in range(len(matrix)):
    for pixel in range(-2 * _MARGIN, size + 2 * _MARGIN):
      tap = sample - 2 * (pixel + _MARGIN) + _FIRST
      if 0 <= tap < len(SYM6):
        period = 2 * (size - 1)
        matrix[sample, min(pixel % period, -pixel % period)] += np.sqrt(2) * SYM6[tap]
  return matrix


@functools.cache
def _down(size: int) -> np.ndarray:
  """Returns the downsampling matrix of an axis, `[size, 2 (size + 2 around)]`."""
  samples = np.arange(2 * (size + 2 * _AROUND)) - 2 * _AROUND
  taps = samples - 2 * np.arange(size)[:, np.newaxis] + _FIRST
  inside = (taps >= 0) & (taps < len(SYM6))
  return np.where(inside, SYM6[np.where(inside, taps, 0)], 0) / np.sqrt(2)


def _positions(sources: tf.Tensor, h: int, w: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns rows and columns of the upsampled image to read, each `[n, i, j]`."""
  x, y = (tf.range(size + 2 * _AROUND, delta=0.5, dtype=sources.dtype) - _OFFSET / 2
          - _AROUND - (size - 1) / 2 for size in (w, h))
  x, y = tf.meshgrid(x, y)
  columns, rows = (
      a[:, tf.newaxis, tf.newaxis] * x + b[:, tf.newaxis, tf.newaxis] * y
      + c[:, tf.newaxis, tf.newaxis] + (size - 1) / 2
      for (a, b, c), size in ((tf.unstack(sources[:, 0], axis=1), w),
                              (tf.unstack(sources[:, 1], axis=1), h)))
  return _inside(rows, h), _inside(columns, w)


def _inside(pixels: tf.Tensor, size: int) -> tf.Tensor:
  """Converts positions in pixels to positions in an upsampled axis, reflected into it."""
  is_near = (pixels >= -_MARGIN) & (pixels <= size - 1 + _MARGIN)
  return 2 * (tf.where(is_near, pixels, reflected(pixels, size)) + _MARGIN) + _OFFSET


def _read(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
  """Interpolates bilinearly at positions `[n, i, j]`: `[n, y, x, c] -> [n, i, j, c]`."""
  n, height, width, channels = images.shape
  # The four neighbors of a position lie side by side, so that one gather reads them all.
  squares = tf.concat([images[:, :-1, :-1], images[:, :-1, 1:], images[:, 1:, :-1],
                       images[:, 1:, 1:]], axis=3)
  top = tf.clip_by_value(tf.cast(tf.floor(rows), tf.int32), 0, height - 2)
  left = tf.clip_by_value(tf.cast(tf.floor(columns), tf.int32), 0, width - 2)
  down, right = rows - tf.cast(top, rows.dtype), columns - tf.cast(left, columns.dtype)
  index = tf.reshape(top * (width - 1) + left, [n, -1])
  squares = tf.reshape(squares, [n, -1, 4 * channels])
  read = tf.reshape(tf.gather(squares, index, batch_dims=1), [*rows.shape, 4, channels])
  weights = tf.stack([(1 - down) * (1 - right), (1 - down) * right, down * (1 - right),
                      down * right], axis=3)
  return tf.reduce_sum(read * weights[..., tf.newaxis], axis=3)
