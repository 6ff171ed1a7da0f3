"""The weights of a checkpoint that fit the networks of another step."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replicator.checkpoints.names import is_average, weight_of
from replicator.checkpoints.snapshot import Snapshot
from replicator.errors import UsageError


class Match:
  """The weights of another run's checkpoint that fit this step.

  Args:
    variables: those of the step, by their path in a checkpoint.
    here: the names of the weights and averages among them, by path; see `names.names_of`.
    values: those of the checkpoint, by path.
    there: their names, by path.
    by_replica: the paths of those with a value for each replica, `[num_replicas, ...]`.

  Attributes:
    networks: the networks of the checkpoint.
    taken: what is taken: paths in the checkpoint by paths in the step.
    left: why something is not taken, by name.
  """

  def __init__(self, variables: Mapping[str, Any], here: Mapping[str, str],
               values: Mapping[str, np.ndarray], there: Mapping[str, str], by_replica: set[str]):
    self._variables, self._here, self._values = variables, here, values
    self._by_replica = by_replica
    self._path_there = {name: path for path, name in there.items()}
    self.networks = {_network(path) for path, name in there.items() if not is_average(name)}
    self.taken: dict[str, str] = {}
    self.left: dict[str, str] = {}

  def add(self, network: str) -> None:
    """Takes what fits of a network."""
    if network not in self.networks:
      self.left[network] = "is not in the other run"
      return
    mine = {path: name for path, name in self._here.items()
            if _network(path) == network and not is_average(name)}
    if not mine:
      self.left[network] = "is only in the other run"
      return
    for path, name in mine.items():
      if why := self._misfit(path, self._path_there.get(name)):
        self.left[name] = why
      else:
        self.taken[path] = self._path_there[name]
    self.left.update({name: "is only in the other run" for name, path in self._path_there.items()
                      if _network(path) == network and name not in mine.values()})
    taken = {name: self.taken[path] for path, name in mine.items() if path in self.taken}
    for path, name in self._here.items():
      if is_average(name) and (weight := taken.get(weight_of(name))):
        self.taken[path] = self._path_there.get(name, weight)

  def _misfit(self, path: str, path_there: str | None) -> str | None:
    if path_there is None:
      return "is not in the other run"
    variable, value = self._variables[path], self._values[path_there]
    dtype, shape = tf.as_dtype(value.dtype), value.shape[path_there in self._by_replica:]
    alike = dtype == variable.dtype or (dtype.is_floating and variable.dtype.is_floating)
    if alike and variable.shape.is_compatible_with(shape):
      return None
    return (f"was {dtype.name} {list(shape)} and is {variable.dtype.name} "
            f"{variable.shape.as_list()}")

  def check_taken(self, frozen: Iterable[str]) -> None:
    """Raises a UsageError if something that is frozen would keep its first, random values."""
    for path, name in self._here.items():
      within = next((layer for layer in frozen if f"{name}/".startswith(f"{layer}/")), None)
      if within is not None and path not in self.taken:
        raise UsageError(f"StartFrom.frozen: '{within}' would stay random, because '{name}' "
                         f"{self.left.get(name, 'is of a network that is not taken')}; freeze only "
                         "what is taken")

  def snapshot(self) -> Snapshot:
    """The values to put into this step's variables."""
    values = {path: self._values[there].astype(self._variables[path].dtype.as_numpy_dtype)
              for path, there in self.taken.items()}
    return Snapshot(values, [path for path, there in self.taken.items()
                             if there in self._by_replica])

  def counts(self) -> dict[str, tuple[int, int]]:
    """The number of weights that are taken of each network, and of all that it has here."""
    weights = [path for path, name in self._here.items() if not is_average(name)]
    everything = collections.Counter(map(_network, weights))
    taken = collections.Counter(_network(path) for path in weights if path in self.taken)
    return {network: (count, everything[network]) for network, count in taken.items()}


def _network(path: str) -> str:
  """The network that a weight with this path in a checkpoint belongs to."""
  return path.rpartition("/")[0]


def names_by_order(here: Mapping[str, str], values: Iterable[str]) -> dict[str, str]:
  """Names for a checkpoint of an earlier version, which has none, by path.

  They are those of this step where a network, or its averages, has as many variables.
  """
  now, then = (collections.Counter(map(_network, paths)) for paths in (here, values))
  return {path: name for path, name in here.items() if then[_network(path)] == now[_network(path)]}
