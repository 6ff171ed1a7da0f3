"""Conversion of environments' observations to what an agent sees: vectors or uint8 images."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

_CHANNELS = (1, 3, 4)  # Of images that are not bytes: gray, RGB, and RGBA or four gray frames.
_SMALLEST = 16  # Sides of images that are not bytes [h, w, c]; smaller ones are boards and tables.
_LONG = 1000  # Length of a vector that may have been an image.


class View(NamedTuple):
  """A conversion of observations to what an agent sees.

  Attributes:
    shape: `[c]`, or `[h, w, c]` for images.
    dtype: float32 or float64, or uint8 for images.
    convert: converts an observation; raises a ValueError if it is not in its space.
    restore: the inverse; floats have lost precision if stored as bytes or in a smaller dtype.
    note: how observations are converted if that is not obvious, or an empty string.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  convert: Callable[[Any], np.ndarray]
  restore: Callable[[np.ndarray], Any]
  note: str = ""


def view_of(space: spaces.Space, dtype: str) -> View:
  """Returns the view of a space's observations; vectors have dtype 'float32' or 'float64'.

  Images of bytes or bits `[h, w, c]` keep their values. Gray images `[h, w]`, images with channels
  first, and images of other integers from 0 to 255, or of floats from 0 to 1 or 255, are converted.
  A dictionary that contains only an image becomes that image.
  """
  image, path = _only_part(space)
  if isinstance(image, spaces.Box) and (scale := _scale(image)):
    return _image(space, image, path, scale)

  def flat(observation: Any) -> np.ndarray:
    _check(holds(space, observation), space, observation)
    numbers = np.asarray(spaces.flatten(space, observation))
    _check(numbers.shape == shape, space, numbers)
    with np.errstate(over="ignore"):  # Infinite numbers are reported as a failure.
      return numbers.astype(dtype, copy=False)

  shape = (spaces.flatdim(space),)
  return View(shape, np.dtype(dtype), flat, lambda seen: spaces.unflatten(space, seen),
              _note_on_vector(space, shape[0], dtype))


def holds(space: spaces.Space, observation: Any) -> bool:
  """Returns whether the dtype of a space, which may be nested, can hold an observation's values.

  Floats may exceed their bounds.
  """
  if isinstance(space, spaces.Dict):
    return all(holds(part, observation[name]) for name, part in space.items())
  if isinstance(space, spaces.Tuple):
    return all(map(holds, space, observation))
  if not isinstance(space, spaces.Box):
    return space.contains(observation)
  if space.dtype.kind == "f":
    return True
  numbers = np.asarray(observation)
  if numbers.dtype == space.dtype:
    return True
  with np.errstate(invalid="ignore"):  # NaN is not an integer.
    return np.array_equal(numbers.astype(space.dtype), numbers)


def as_bytes(image: np.ndarray, scale: float) -> np.ndarray:
  """Scales numbers, rounds and clips them to bytes: any shape -> uint8 of that shape."""
  return np.clip(np.rint(scale * image), 0, 255).astype(np.uint8)


# ---- Images -------------------------------------------------------------------------------------


def _image(space: spaces.Space, image: spaces.Box, path: tuple, scale: float) -> View:
  has_channels, first = len(image.shape) == 3, _has_channels_first(image.shape)
  is_bytes = image.dtype in (np.uint8, bool)

  def seen(observation: Any) -> np.ndarray:
    for key in path:
      observation = observation[key]
    _check(holds(image, observation), image, observation)
    found = np.asarray(observation)
    _check(found.shape == image.shape and (not is_bytes or found.dtype == image.dtype), image,
           found)
    if is_bytes:
      found = found.astype(np.uint8, copy=False)
    else:
      if not np.isfinite(found).all():
        raise ValueError("its observation is not finite")
      found = as_bytes(found, scale)
    if first:
      return np.moveaxis(found, 0, -1)
    return found if has_channels else found[..., np.newaxis]

  def restored(seen: np.ndarray) -> Any:
    found: Any = seen if has_channels else seen[..., 0]
    found = np.moveaxis(found, -1, 0) if first else found
    found = found.astype(image.dtype) if is_bytes else (found / scale).astype(image.dtype)
    for key in reversed(path):
      found = {key: found} if isinstance(key, str) else (found,)
    return found

  *sides, channels = image.shape if has_channels else (*image.shape, 1)
  if first:
    channels, *sides = image.shape
  doubts = [*(["with the channels first"] if first else []),
            *([] if is_bytes else [f"of {image.dtype}"])]
  became = " x ".join(map(str, (*sides, channels)))
  note = (f"images {' and '.join(doubts)}, {image}, are converted to bytes, {became}"
          if doubts else "")
  return View((*sides, channels), np.dtype(np.uint8), seen, restored, note)


def _scale(space: spaces.Box) -> float:
  """Returns the factor from image values to bytes; 0 if the space does not contain images."""
  axes, shape, kind = len(space.shape), space.shape, space.dtype.kind
  if axes == 3 and space.dtype in (np.uint8, bool):
    return 1.0
  low, high = np.unique(space.low), np.unique(space.high)
  if len(low) != 1 or len(high) != 1 or low[0] != 0 or high[0] not in (1, 255):
    return 0.0
  is_image = axes == 2 and kind in "iu" and high[0] == 255 and min(shape) >= _SMALLEST
  if axes == 3:
    channels, *sides = np.roll(shape, 0 if _has_channels_first(shape) else 1)
    is_image = (channels in _CHANNELS and min(sides) >= _SMALLEST
                and (kind == "f" or high[0] == 255))
  return 255.0 / float(high[0]) if is_image else 0.0


def _has_channels_first(shape: tuple[int, ...]) -> bool:
  """Returns whether the first of three axes is shortest, and the last too long for channels."""
  return len(shape) == 3 and shape[0] < min(shape[1:]) and shape[2] > max(_CHANNELS)


# ---- Other observations -------------------------------------------------------------------------


def _only_part(space: spaces.Space) -> tuple[spaces.Space, tuple]:
  """Unwraps dictionaries and tuples of a single space; returns that space and the path to it."""
  path: list[Any] = []
  while isinstance(space, spaces.Dict | spaces.Tuple) and len(space) == 1:
    (key, space), = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
    path.append(key)
  return space, tuple(path)


def _note_on_vector(space: spaces.Space, size: int, dtype: str) -> str:
  if size < _LONG or not any(len(part.shape or ()) > 1 for part in _parts(space)):
    return ""
  remedy = "add a wrapper that converts them to bytes [h, w, c]"
  if isinstance(space, spaces.Dict):
    remedy = ("choose one with the wrapper 'gymnasium.wrappers:FilterObservation': "
              "{'filter_keys': ['NAME']}")
  elif isinstance(space, spaces.Box) and len(space.shape) > 3:
    remedy = "leave out the wrapper that stacks them, and set Environments.stack"
  return (f"{' '.join(str(space).split())} is flattened to a vector of {size:,} {dtype} numbers, "
          f"without convolutions; if it has images, {remedy}")


def _parts(space: spaces.Space) -> list[spaces.Space]:
  inner = (space.values() if isinstance(space, spaces.Dict) else
           space if isinstance(space, spaces.Tuple) else None)
  return [space] if inner is None else [part for each in inner for part in _parts(each)]


def _check(is_right: bool, space: spaces.Space, observation: Any) -> None:
  if is_right:
    return
  of_shape = isinstance(observation, np.ndarray) and (
      observation.size > 10 or observation.shape != space.shape)
  shown = (f"{observation.dtype} {list(observation.shape)}" if of_shape else
           " ".join(str(observation).split())[:60])
  raise ValueError(f"its observation, {shown}, is not in its observation_space, {space}")
