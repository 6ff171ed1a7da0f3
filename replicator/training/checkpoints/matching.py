"""Matches the weights of a checkpoint to the networks of a different step, by their names."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from replicator.console.formatting import labeled
from replicator.errors import UsageError
from replicator.training.checkpoints import names as naming
from replicator.training.checkpoints.snapshot import Snapshot

Names = Mapping[str, str]  # Names of weights and averages, by path; see `names_of`.


def match(networks: Mapping[str, str], variables: Mapping[str, Any], here: Names, saved: Snapshot,
          there: Names, averaged: bool = False) -> tuple[dict[str, str], dict[str, str]]:
  """Returns the path in the checkpoint for each path that matches; and why others do not, by name.

  Args:
    networks: for the path of each network in the step, the path in the checkpoint to take it from.
    variables: the variables of the step, by path.
    here: the names of weights in the step.
    saved: the values of the checkpoint.
    there: the names of weights in the checkpoint.
    averaged: whether to take the checkpoint's averages as weights, where it has them.
  """
  taken: dict[str, str] = {}
  left: dict[str, str] = {}
  averages = {name.removeprefix(naming.AVERAGE): path for path, name in there.items()
              if name.startswith(naming.AVERAGE)}
  average_of: dict[str, str] = {}  # By a weight's name here, the path of its average there.
  for network, other in networks.items():
    mine = within(here, network)
    # The weights there, by the names they would have here.
    renamed = {naming.joined(network, name.removeprefix(other).lstrip("/")): (name, path)
               for name, path in within(there, other).items()}
    if not mine or not renamed:
      left[network] = f"is {'only' if renamed else 'not'} in the other run"
      continue
    for name, path in mine.items():
      if name not in renamed:
        left[name] = "is not in the other run"
        continue
      name_there, path_there = renamed[name]
      average_of[name] = averages.get(name_there, path_there)
      if why := saved.misfit(path_there, variables[path], any_float=True):
        left[name] = why
      else:
        taken[path] = average_of[name] if averaged else path_there
    left |= {name: "is only in the other run" for name in renamed if name not in mine}
  weights = {here[path] for path in taken}
  for path, name in here.items():
    weight = name.removeprefix(naming.AVERAGE)
    if weight != name and weight in weights:
      taken[path] = average_of[weight]
  return taken, left


def check_frozen(frozen: Iterable[str], here: Names, taken: Collection[str],
                 left: Mapping[str, str]) -> None:
  """Raises a UsageError if something frozen would keep its initial random values."""
  for path, name in here.items():
    inside = next((layer for layer in frozen if f"{name}/".startswith(f"{layer}/")), None)
    if inside is not None and path not in taken:
      raise UsageError(f"StartFrom.frozen: '{inside}' would stay random, because '{name}' "
                       f"{left.get(name, 'is in a network that is not taken')}; freeze only "
                       "weights that are taken")


def weights_of(names: Names) -> dict[str, str]:
  """Returns the paths of the weights by name, without averages."""
  return {name: path for path, name in names.items() if not name.startswith(naming.AVERAGE)}


def within(names: Names, network: str) -> dict[str, str]:
  """Returns the paths of the weights of one network, by name."""
  return {name: path for name, path in weights_of(names).items() if network_of(path) == network}


def network_of(path: str) -> str:
  """Returns the network of the weight with this path in a checkpoint."""
  return path.rpartition("/")[0]


def uneven(networks: Mapping[str, str], here: Names, there: Names) -> list[str]:
  """Returns a line for each class of unnamed layers whose number differs between the runs."""
  lines = []
  for network, other in networks.items():
    mine, others = (naming.in_order(name.removeprefix(of).lstrip("/")
                                    for name in within(names, of))
                    for names, of in ((here, network), (there, other)))
    lines += [labeled("in order", f"{naming.joined(network, kind)}: {count} here, {others[kind]} "
                      "in the other run; layers without a name=... are matched in order")
              for kind, count in mine.items() if others.get(kind, count) != count]
  return lines
