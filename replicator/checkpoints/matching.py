"""The weights of a checkpoint that fit the networks of another step."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from replicator.checkpoints.names import AVERAGE
from replicator.checkpoints.snapshot import Snapshot
from replicator.errors import UsageError

Names = Mapping[str, str]
"""The names of weights and averages, by path in a checkpoint; see `names.names_of`."""


@dataclasses.dataclass
class Match:
  """The weights of another run's checkpoint that fit this step."""

  here: Names  # Those of the step.
  # Paths in the checkpoint by paths in the step; and why something is not taken, by name.
  taken: dict[str, str] = dataclasses.field(default_factory=dict)
  left: dict[str, str] = dataclasses.field(default_factory=dict)

  def check_taken(self, frozen: Iterable[str]) -> None:
    """Raises a UsageError if something that is frozen would keep its first, random values."""
    for path, name in self.here.items():
      within = next((layer for layer in frozen if f"{name}/".startswith(f"{layer}/")), None)
      if within is not None and path not in self.taken:
        raise UsageError(f"StartFrom.frozen: '{within}' would stay random, because '{name}' "
                         f"{self.left.get(name, 'is of a network that is not taken')}; freeze only "
                         "what is taken")

  def counts(self) -> dict[str, tuple[int, int]]:
    """The number of weights that are taken of each network, and of all that it has here."""
    weights = [path for path, name in self.here.items() if not name.startswith(AVERAGE)]
    everything = collections.Counter(map(_network, weights))
    taken = collections.Counter(_network(path) for path in weights if path in self.taken)
    return {network: (count, everything[network]) for network, count in taken.items()}


def match(networks: Iterable[str], variables: Mapping[str, Any], here: Names, saved: Snapshot,
          there: Names) -> Match:
  """Finds what fits of some networks.

  Args:
    networks: their paths.
    variables: those of the step, by path.
    here: the names of the step.
    saved: the values of the checkpoint.
    there: the names of the checkpoint.
  """
  found = Match(here)
  for network in networks:
    mine, others = _weights(here, network), _weights(there, network)
    if not mine or not others:
      found.left[network] = f"is {'only' if others else 'not'} in the other run"
      continue
    for name, path in mine.items():
      if name not in others:
        found.left[name] = "is not in the other run"
      elif why := saved.misfit(others[name], variables[path], any_float=True):
        found.left[name] = why
      else:
        found.taken[path] = others[name]
    found.left |= {name: "is only in the other run" for name in others if name not in mine}
  weights = {here[path]: path_there for path, path_there in found.taken.items()}
  paths_there = {name: path for path, name in there.items()}
  for path, name in here.items():
    weight = name.removeprefix(AVERAGE)
    if weight != name and weight in weights:
      found.taken[path] = paths_there.get(name, weights[weight])
  return found


def networks_in(names: Names) -> set[str]:
  """The networks whose weights have names."""
  return {_network(path) for path, name in names.items() if not name.startswith(AVERAGE)}


def _weights(names: Names, network: str) -> dict[str, str]:
  """The paths of the weights of a network, by name."""
  return {name: path for path, name in names.items()
          if _network(path) == network and not name.startswith(AVERAGE)}


def _network(path: str) -> str:
  """The network that a weight with this path in a checkpoint belongs to."""
  return path.rpartition("/")[0]
