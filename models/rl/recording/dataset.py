"""Data sets of episodes as folders in Minari's format, which other programs read and write.

    FOLDER/data/metadata.json, main_data.hdf5: a group `episode_I` for each episode, which has
    `observations [t + 1, ...]`, `actions [t, ...]`, `rewards`, `terminations` and `truncations [t]`

A dictionary or tuple of observations is a group of such arrays. Observations, actions and rewards
are the environment's own. Reference: https://minari.farama.org/content/dataset_standards/, version
0.5.
"""

import contextlib
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from replicator import UsageError, atomic

import h5py
import numpy as np
from gymnasium import spaces

_VERSION = "0.5.0"  # Of Minari.


class Episode(NamedTuple):
  """One episode of t steps, as an environment sees it."""

  observations: Any  # Arrays `[t + 1, ...]`; dictionaries and tuples of them for such spaces.
  actions: np.ndarray  # [t, ...]
  rewards: np.ndarray  # float64 [t]
  terminated: bool  # Whether it terminated with the last step; else it was truncated.


def write(folder: pathlib.Path, episodes: Sequence[Episode], observation_space: spaces.Space,
          action_space: spaces.Space, env_spec: Any = None) -> None:
  """Writes a new data set atomically; `env_spec` is Gymnasium's, if known."""
  with atomic.created(folder) as made:
    data = made / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
      for i, episode in enumerate(episodes):
        group, length = file.create_group(f"episode_{i}"), len(episode.rewards)
        group.attrs.update(id=i, total_steps=length)
        _put(group, "observations", episode.observations)
        group["actions"], group["rewards"] = episode.actions, episode.rewards
        is_last = np.arange(length) == length - 1
        group["terminations"] = is_last & episode.terminated
        group["truncations"] = is_last & (not episode.terminated)
    metadata = {
        "total_episodes": len(episodes), "total_steps": sum(len(e.rewards) for e in episodes),
        "data_format": "hdf5", "observation_space": json.dumps(_described(observation_space)),
        "action_space": json.dumps(_described(action_space)), "dataset_id": folder.name,
        "minari_version": _VERSION}
    with contextlib.suppress(Exception):  # Any type: its arguments may be the user's code.
      metadata["env_spec"] = env_spec.to_json()
    (data / "metadata.json").write_text(json.dumps(metadata))


def read(folder: str) -> Iterator[Episode]:
  """Reads all episodes of a data set, in order.

  Raises:
    UsageError: there is no data set of this format.
  """
  path = pathlib.Path(folder).expanduser() / "data" / "main_data.hdf5"
  if not path.is_file():
    raise UsageError(f"'{folder}': is not a data set of episodes, which has a file "
                     f"data/{path.name}; give a folder made by `replicator play --record` or "
                     "`minari download`, such as '~/.minari/datasets/NAME'")
  with h5py.File(path) as file:
    for name in sorted(file, key=lambda name: int(name.rpartition("_")[2])):
      group: Any = file[name]
      ends = {end: np.flatnonzero(group[end][:]) for end in ("terminations", "truncations")}
      length = min([len(group["rewards"]), *(int(x[0]) + 1 for x in ends.values() if x.size)])
      yield Episode(_got(group["observations"], length + 1), group["actions"][:length],
                    group["rewards"][:length].astype(np.float64),
                    length - 1 in ends["terminations"])


def _put(group: h5py.Group, name: str, values: Any) -> None:
  if isinstance(values, np.ndarray):
    group[name] = values
    return
  below = group.create_group(name)
  named = values if isinstance(values, dict) else {
      f"_index_{i}": value for i, value in enumerate(values)}
  for key, value in named.items():
    _put(below, key, value)


def _got(values: h5py.Group | h5py.Dataset, length: int) -> Any:
  if isinstance(values, h5py.Dataset):
    return values[:length]
  if "_index_0" in values:
    return tuple(_got(values[f"_index_{i}"], length) for i in range(len(values)))
  return {key: _got(value, length) for key, value in values.items()}


def _described(space: spaces.Space) -> dict[str, Any]:
  """Describes a space in Minari's format."""
  kind = type(space).__name__
  if isinstance(space, spaces.Dict):
    return {"type": kind, "subspaces": {name: _described(s) for name, s in space.items()}}
  if isinstance(space, spaces.Tuple):
    return {"type": kind, "subspaces": [_described(s) for s in space]}
  if isinstance(space, spaces.Discrete):
    return {"type": kind, "dtype": "int64", "start": int(space.start), "n": int(space.n)}
  if isinstance(space, spaces.Box):
    return {"type": kind, "dtype": str(space.dtype), "shape": list(space.shape),
            "low": space.low.tolist(), "high": space.high.tolist()}
  if isinstance(space, spaces.MultiDiscrete):
    return {"type": kind, "dtype": str(space.dtype), "nvec": space.nvec.tolist(),
            "start": space.start.tolist()}
  if isinstance(space, spaces.MultiBinary):
    return {"type": kind, "n": list(space.shape)}
  raise UsageError(f"--record: {space} cannot be written in Minari's format")
