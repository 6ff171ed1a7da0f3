"""Timesteps: what actors deliver and a replay keeps, each one moment of a stream of experience."""

from typing import NamedTuple

import numpy as np

from replicator import UsageError

CONTINUES, TERMINATED, END = 0, 1, 2
"""Flags of rows. CONTINUES: the action led to the observation of the next row. TERMINATED: as well,
and there the episode terminated: nothing is to be expected after it. END: the last observation of
an episode, terminated or truncated; its action and reward mean nothing. A truncated episode
ends with CONTINUES, END; a terminated one with TERMINATED, END."""


class Timesteps(NamedTuple):
  """What actors deliver: m moments, those of one stream in the order of time; NumPy arrays.

  Attributes:
    stream: int32 [m], the environment that each is of.
    observation: [m, *shape].
    action: float32 [m, a], taken at that observation.
    reward: float32 [m], of that action.
    flag: [m], CONTINUES, TERMINATED or END.
  """

  stream: np.ndarray
  observation: np.ndarray
  action: np.ndarray
  reward: np.ndarray
  flag: np.ndarray


def ends(streams: np.ndarray, observations: np.ndarray, action_size: int) -> Timesteps:
  """The last rows of the episodes of some streams [k], of which [n, ...] are the observations."""
  k = len(streams)
  return Timesteps(streams.astype(np.int32), observations[streams],
              np.zeros([k, action_size], np.float32), np.zeros([k], np.float32),
              np.full([k], END, np.uint8))


def checked(rows: Timesteps, streams: int, observation_shape: tuple[int, ...], observation_dtype: str,
            action_size: int) -> Timesteps:
  """The rows in the dtypes that a replay keeps, with zeros where they mean nothing.

  Raises:
    UsageError: they do not fit the arguments, which are those of `Replay`, or a number is not
      finite.
  """
  m = len(rows.stream)
  stream = _whole("stream", rows.stream, m, streams)
  flag = _whole("flag", rows.flag, m, END + 1)
  parts = {}
  for name, shape, dtype in (("observation", (m, *observation_shape), observation_dtype),
                             ("action", (m, action_size), "float32"), ("reward", (m,), "float32")):
    given = np.asarray(getattr(rows, name))
    if given.shape != shape or not np.can_cast(given.dtype, dtype, "same_kind"):
      raise UsageError(f"Replay.insert: {name} is {_described(given)}; the replay keeps "
                       f"{dtype} {list(shape)}")
    with np.errstate(over="ignore"):  # What becomes infinite is refused below.
      parts[name] = given.astype(dtype)
    if name != "observation":
      parts[name][flag == END] = 0
    bad = ~np.isfinite(parts[name]).all(axis=tuple(range(1, given.ndim)))
    if bad.any():
      raise UsageError(f"Replay.insert: the {name} of row {bad.argmax()}, of stream "
                       f"{stream[bad.argmax()]}, is not finite in float32; end or restart an "
                       "episode whose environment returns such")
  return Timesteps(stream.astype(np.int32), **parts, flag=flag.astype(np.int32))


def numbered(stream: np.ndarray, written: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The number of each new row in its stream, int64 [m], and how many rows there are then.

  Args:
    stream: int32 [m], of the rows.
    written: int64 [streams], how many rows each stream got before.
  """
  counts = np.bincount(stream, minlength=len(written))
  order = np.argsort(stream, kind="stable")
  number = np.empty(len(stream), np.int64)
  number[order] = np.arange(len(stream)) - np.repeat(np.cumsum(counts) - counts, counts)
  return number + written[stream], written + counts


def _whole(name: str, numbers: np.ndarray, count: int, end: int) -> np.ndarray:
  """So many whole numbers below `end`."""
  numbers = np.asarray(numbers)
  if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
    raise UsageError(f"Replay.insert: {name} is {_described(numbers)}; give a whole number for "
                     f"each of the {count} rows")
  if ((numbers < 0) | (numbers >= end)).any():
    raise UsageError(f"Replay.insert: {name} holds {numbers.min()} to {numbers.max()}; must be "
                     f"from 0 to {end - 1}")
  return numbers


def _described(array: np.ndarray) -> str:
  return f"{array.dtype.name} {list(array.shape)}"
