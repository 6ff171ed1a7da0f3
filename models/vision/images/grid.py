"""Grids: one picture composed of many images."""

from models.vision.images.image_source import to_uint8

import numpy as np

_GAP_LEVEL = 72  # A gray that is visible between black images and between white ones.
_TILE = 32  # The minimum height of a tile in pixels when no scale is given.


def image_grid(images: np.ndarray, columns: int = 10, scale: int | None = None) -> np.ndarray:
  """Draws a grid of images, `columns` per row, one pixel apart: [n, h, w, c] -> uint8 [H, W, 3].

  Args:
    images: an array or tensor, uint8 or floats in [-1, 1]; c is 1 (gray) or 3.
    columns: images per row.
    scale: integer factor of enlargement (nearest pixel); by default the smallest that makes
      images at least 32 pixels high.

  Raises:
    ValueError: `images` is empty or not [n, h, w, 1 or 3].
  """
  tiles = _tiles(images, scale)
  n, height, width, _ = tiles.shape
  rows = -(-n // columns)
  grid = np.full([rows, columns, height + 1, width + 1, 3], _GAP_LEVEL, np.uint8)
  grid.reshape(-1, height + 1, width + 1, 3)[:n, 1:, 1:] = tiles
  grid = grid.swapaxes(1, 2).reshape(rows * (height + 1), columns * (width + 1), 3)
  return np.pad(grid, ((0, 1), (0, 1), (0, 0)), constant_values=_GAP_LEVEL)


def paired_grid(originals: np.ndarray, reconstructions: np.ndarray, columns: int = 5,
                scale: int | None = None) -> np.ndarray:
  """Draws originals, each left of its reconstruction: two [n, h, w, c] -> uint8 [H, W, 3].

  `columns` counts pairs. There is space between pairs, but not within a pair.

  Raises:
    ValueError: the shapes differ, or are not [n, h, w, 1 or 3].
  """
  left, right = _tiles(originals, scale), _tiles(reconstructions, scale)
  if left.shape != right.shape:
    raise ValueError(f"Originals {np.shape(originals)} and reconstructions "
                     f"{np.shape(reconstructions)} must have the same shape.")
  pairs = np.concatenate([left, right], axis=2)
  space = max(2, left.shape[1] // 8)
  pairs = np.pad(pairs, ((0, 0), (0, 0), (0, space), (0, 0)), constant_values=_GAP_LEVEL)
  return image_grid(pairs, columns, scale=1)[:, :-space]


def side_by_side(left: np.ndarray, right: np.ndarray, gap: int = 16) -> np.ndarray:
  """Puts two pictures side by side, tops aligned, `gap` white pixels apart: uint8 [H, W, 3]."""
  height = max(len(left), len(right))
  columns = [left, np.full([height, gap, 3], 255, np.uint8), right]
  return np.concatenate([
      np.pad(column, ((0, height - len(column)), (0, 0), (0, 0)), constant_values=255)
      for column in columns], axis=1)


def _tiles(images: np.ndarray, scale: int | None) -> np.ndarray:
  """Enlarges images as RGB: [n, h, w, c] -> uint8 [n, h * scale, w * scale, 3]."""
  images = np.asarray(images)
  if images.ndim != 4 or not len(images) or images.shape[-1] not in (1, 3):
    raise ValueError(f"A grid needs images [n, h, w, 1 or 3], not {list(images.shape)}.")
  if images.dtype != np.uint8:
    images = to_uint8(images).numpy()
  scale = scale or max(1, -(-_TILE // images.shape[1]))
  images = images.repeat(scale, axis=1).repeat(scale, axis=2)
  return np.broadcast_to(images, [*images.shape[:3], 3])
