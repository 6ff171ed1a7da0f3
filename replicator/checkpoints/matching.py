"""The weights of a checkpoint that fit the networks of another step."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from replicator.checkpoints.names import AVERAGE, joined
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


def match(networks: Mapping[str, str], variables: Mapping[str, Any], here: Names, saved: Snapshot,
          there: Names, averaged: bool = False) -> Match:
  """Finds what fits of some networks.

  Args:
    networks: their paths in the step, and what each takes the weights of: a path in the checkpoint.
    variables: those of the step, by path.
    here: the names of the step.
    saved: the values of the checkpoint.
    there: the names of the checkpoint.
    averaged: whether the weights are those averages that the checkpoint has.
  """
  found = Match(here)
  averages = {name.removeprefix(AVERAGE): path for path, name in there.items()
              if name.startswith(AVERAGE)}
  average_of: dict[str, str] = {}  # The path there of the average of a weight that has a name here.
  for network, other in networks.items():
    mine = _weights(here, network)
    # By the names that they would have here.
    renamed = {joined(network, name.removeprefix(other).lstrip("/")): (name, path)
               for name, path in _weights(there, other).items()}
    if not mine or not renamed:
      found.left[network] = f"is {'only' if renamed else 'not'} in the other run"
      continue
    for name, path in mine.items():
      if name not in renamed:
        found.left[name] = "is not in the other run"
        continue
      name_there, path_there = renamed[name]
      average_of[name] = averages.get(name_there, path_there)
      if why := saved.misfit(path_there, variables[path], any_float=True):
        found.left[name] = why
      else:
        found.taken[path] = average_of[name] if averaged else path_there
    found.left |= {name: "is only in the other run" for name in renamed if name not in mine}
  taken = {here[path] for path in found.taken}
  for path, name in here.items():
    weight = name.removeprefix(AVERAGE)
    if weight != name and weight in taken:
      found.taken[path] = average_of[weight]
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
