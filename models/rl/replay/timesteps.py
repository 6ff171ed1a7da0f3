"""Timesteps, the units of experience that actors collect and a replay stores."""

from collections.abc import Sequence
from typing import NamedTuple

from replicator import UsageError

import numpy as np

CONTINUES, TERMINATED, END = 0, 1, 2
"""Flags of timesteps.

CONTINUES: the action led to the observation of the next timestep.
TERMINATED: the same, and the episode terminated there: no reward follows.
END: the last observation of an episode, terminated or truncated. Its action and reward are
meaningless.

A truncated episode ends with CONTINUES, END; a terminated one with TERMINATED, END.
"""


class Timesteps(NamedTuple):
  """m timesteps; those of one stream are in chronological order."""

  stream: np.ndarray  # int32 [m], the environment that each timestep comes from.
  observation: np.ndarray  # [m, *shape]
  action: np.ndarray  # float32 [m, a], taken at that observation.
  reward: np.ndarray  # float32 [m], for that action.
  flag: np.ndarray  # [m], CONTINUES, TERMINATED or END.


def ends(streams: np.ndarray, observations: np.ndarray, action_size: int) -> Timesteps:
  """Returns the END timesteps of the episodes of some streams, int [k].

  `observations [n, *shape]` are the last observations of all streams.
  """
  k = len(streams)
  return Timesteps(streams.astype(np.int32), observations[streams],
                   np.zeros([k, action_size], np.float32), np.zeros([k], np.float32),
                   np.full([k], END, np.uint8))


def joined(parts: Sequence[Timesteps]) -> Timesteps:
  """Concatenates timesteps."""
  if len(parts) == 1:
    return parts[0]
  return Timesteps(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def checked(timesteps: Timesteps, streams: int, observation_shape: tuple[int, ...],
            observation_dtype: str, action_size: int) -> Timesteps:
  """Casts timesteps to a replay's dtypes, and sets actions and rewards of ENDs to zero.

  The other arguments are those of `Replay`.

  Raises:
    UsageError: the timesteps do not fit the other arguments, or a number is not finite.
  """
  m = len(timesteps.stream)
  parts = {}
  for name, shape, dtype in (
      ("stream", (m,), "int32"), ("observation", (m, *observation_shape), observation_dtype),
      ("action", (m, action_size), "float32"), ("reward", (m,), "float32"),
      ("flag", (m,), "int64")):
    given = np.asarray(getattr(timesteps, name))
    if given.shape != shape or not np.can_cast(given.dtype, dtype, "same_kind"):
      raise UsageError(f"Replay.insert: {name} is {given.dtype.name} {list(given.shape)}; the "
                       f"replay stores {dtype} {list(shape)}")
    with np.errstate(over="ignore"):  # Numbers that become infinite are rejected below.
      parts[name] = given.astype(dtype)
  for name, end in (("stream", streams), ("flag", END + 1)):
    numbers = np.asarray(getattr(timesteps, name))  # Before they were cast.
    if ((numbers < 0) | (numbers >= end)).any():
      raise UsageError(f"Replay.insert: {name} holds {numbers.min()} to {numbers.max()}; must be "
                       f"from 0 to {end - 1}")
  for name in ("action", "reward"):
    parts[name][parts["flag"] == END] = 0
  for name in ("observation", "action", "reward"):
    bad = ~np.isfinite(parts[name]).all(axis=tuple(range(1, parts[name].ndim)))
    if bad.any():
      raise UsageError(f"Replay.insert: the {name} of timestep {bad.argmax()}, in stream "
                       f"{parts['stream'][bad.argmax()]}, is not finite in float32; end the "
                       "episode, or restart its environment, before inserting")
  return Timesteps(**parts)


def numbered(stream: np.ndarray, written: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns each new timestep's number in its stream, int64 [m], and new counts, int64 [streams].

  `stream`, int32 [m], is the stream of each timestep; `written` has the previous counts.
  """
  counts = np.bincount(stream, minlength=len(written))
  order = np.argsort(stream, kind="stable")
  number = np.empty(len(stream), np.int64)
  number[order] = np.arange(len(stream)) - np.repeat(np.cumsum(counts) - counts, counts)
  return number + written[stream], written + counts
