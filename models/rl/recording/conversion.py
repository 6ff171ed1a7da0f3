"""Converts recorded episodes between the environment's view and the agent's."""

from typing import Any

from models.rl.environments import observations
from models.rl.environments.actions import choices_of, to_action
from models.rl.environments.environments import Environments
from models.rl.recording.dataset import Episode
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps
from replicator import UsageError

import numpy as np
from gymnasium import spaces


def timesteps_of(environments: Environments, episode: Episode, stream: int, source: str
                 ) -> Timesteps:
  """Converts an episode to the `t + 1` timesteps that an actor would insert into a stream.

  Raises a UsageError that names the `source` if it does not match these environments.
  """
  observed, actions = environments.spaces
  try:
    seen = _seen(environments, episode.observations)
    taken = _vectors_of(actions, episode.actions)
  except (KeyError, IndexError, ValueError, TypeError) as error:
    raise UsageError(f"'{source}': is not a data set of {environments.name}, whose observations "
                     f"are {observed} and whose actions are {actions}") from error
  n = len(seen)
  before = [np.maximum(np.arange(n) - k, 0) for k in reversed(range(environments.stack))]
  seen = np.concatenate([seen[rows] for rows in before], -1)
  if (seen.shape[1:], taken.shape) != (environments.observation_shape,
                                       (n - 1, environments.action_size)):
    raise UsageError(f"'{source}': has observations of shape {list(seen.shape[1:])} and actions of "
                     f"length {taken.shape[-1]}, but {environments.name} has "
                     f"{list(environments.observation_shape)} and {environments.action_size}")
  flag = np.full([n], CONTINUES, np.uint8)
  flag[-2:] = TERMINATED if episode.terminated else CONTINUES, END
  return Timesteps(np.full([n], stream, np.int32), seen, np.pad(taken, [(0, 1), (0, 0)]),
                   np.append(episode.rewards, 0).astype(np.float32), flag)


def episode_of(environments: Environments, seen: np.ndarray, taken: np.ndarray,
               rewards: np.ndarray, terminated: bool) -> Episode:
  """Converts an episode from the agent's view to the environment's.

  Args:
    environments: the environments, which must not use `pixels`.
    seen: observations `[t + 1, *shape]`.
    taken: actions float32 `[t, action_size]`.
    rewards: [t].
    terminated: see `Episode`.
  """
  space, actions = environments.spaces
  newest = seen[..., -(seen.shape[-1] // environments.stack):]
  view = observations.view_of(space, environments.settings.observation_dtype)
  return Episode(_columns(space, list(map(view.restore, newest))),
                 np.stack(list(map(to_action(actions), taken))),
                 np.asarray(rewards, np.float64), terminated)


def _columns(space: spaces.Space, rows: Any) -> Any:
  """Stacks n observations to arrays `[n, ...]`, nested like the space."""
  if isinstance(space, spaces.Dict):
    return {name: _columns(part, [row[name] for row in rows]) for name, part in space.items()}
  if isinstance(space, spaces.Tuple):
    return tuple(_columns(part, [row[i] for row in rows]) for i, part in enumerate(space))
  return np.asarray(rows, space.dtype)


def _seen(environments: Environments, columns: Any) -> np.ndarray:
  """Converts n observations to what an agent sees, without stacking: `[n, ...]`."""
  space, dtype = environments.spaces[0], environments.observation_dtype
  if dtype != "uint8":
    return _flat(space, columns).astype(dtype)
  view, rows = observations.view_of(space, environments.settings.observation_dtype), columns
  while not isinstance(rows, np.ndarray):  # The only part is the image.
    (rows,) = rows.values() if isinstance(rows, dict) else rows
  return np.stack([view.convert(_row(columns, i)) for i in range(len(rows))])


def _row(columns: Any, i: int) -> Any:
  if isinstance(columns, dict):
    return {name: _row(column, i) for name, column in columns.items()}
  return tuple(_row(each, i) for each in columns) if isinstance(columns, tuple) else columns[i]


def _flat(space: spaces.Space, columns: Any) -> np.ndarray:
  """Flattens n observations like `spaces.flatten`: `[n, c]`."""
  if isinstance(space, spaces.Dict):
    return np.concatenate([_flat(part, columns[name]) for name, part in space.items()], 1)
  if isinstance(space, spaces.Tuple):
    return np.concatenate([_flat(*each) for each in zip(space, columns, strict=True)], 1)
  if choices_of(space) and not isinstance(space, spaces.MultiBinary):
    return _one_hot(space, columns)
  return columns.reshape(len(columns), -1)


def _vectors_of(space: Any, actions: np.ndarray) -> np.ndarray:
  """Converts actions to the agent's vectors, float32 `[t, a]`; the inverse of `to_action`."""
  if choices_of(space):
    return _one_hot(space, actions)
  low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
  flat = actions.reshape(len(actions), -1)
  return np.clip((2 * flat - high - low) / (high - low), -1, 1).astype(np.float32)


def _one_hot(space: spaces.Space, values: np.ndarray) -> np.ndarray:
  """Converts choices to one-hot blocks: `[n, ...] -> float32 [n, sum(choices)]`."""
  places = (values - getattr(space, "start", 0)).reshape(len(values), -1).astype(int)
  return np.concatenate([np.eye(k, dtype=np.float32)[column]
                         for k, column in zip(choices_of(space), places.T, strict=True)], 1)
