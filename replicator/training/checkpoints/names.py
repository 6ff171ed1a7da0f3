"""Names for the layers and weights in the networks of a step: the attributes that lead to them.

A checkpoint finds a weight by its number in a network, which is another one in a network of another
size. These names are the same there: `discriminator/blocks/0/shortcut/layer/kernel`.
"""

import collections
import re
from collections.abc import Mapping
from typing import Any

from replicator.internals.keras_internals import sublayers_of
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by, variables_of

import keras

AVERAGE = "average of "  # The name of a moving average begins so, and goes on as its weight's.
_UNNAMED = re.compile(r"variable(_\d+)?")  # Keras counts those of a process.
_HOLDERS = (keras.layers.Layer, keras.Variable, list, tuple, dict)  # They may lead there.


def networks_of(step: Any) -> dict[str, keras.layers.Layer]:
  """The networks that a step holds, by path: its outermost Keras layers that have variables."""
  return {path: network for path, network in held_by(step, (keras.layers.Layer,))
          if network.variables}


def layers_in(network: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
  """The layers in a network by name, each before those inside it.

  One that no public attribute leads to, as in a `keras.Sequential`, is called `layers/NUMBER`.
  """
  found: dict[str, keras.layers.Layer] = {}
  seen: set[int] = set()

  def visit(parent: keras.layers.Layer, prefix: str) -> None:
    names = _attributes(parent)
    for number, layer in enumerate(sublayers_of(parent)):
      if id(layer) not in seen:
        seen.add(id(layer))
        path = prefix + names.get(id(layer), f"layers/{number}")
        found[path] = layer
        visit(layer, f"{path}/")

  visit(network, "")
  return found


def blocks_in(network: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
  """The layers and blocks directly in a network that have variables, by name, the first one first.

  Their order is that of their attributes in the network.
  """
  direct = {id(layer) for layer in sublayers_of(network) if layer.variables}
  return {name: layer for name, layer in layers_in(network).items() if id(layer) in direct}


def weights_in(network: keras.layers.Layer) -> dict[str, keras.Variable]:
  """The variables of a network by name: that of their layer, and their own in it."""
  found: dict[str, keras.Variable] = {}
  seen: set[int] = set()
  # Inner layers first: the variables of a layer are also those of the layers around it.
  for path, layer in reversed([("", network), *layers_in(network).items()]):
    names, count = _attributes(layer), collections.Counter[str]()
    for variable in layer.variables:
      if id(variable) not in seen:
        seen.add(id(variable))
        own = "unnamed" if _UNNAMED.fullmatch(variable.name) else variable.name
        name = names.get(id(variable), own)
        count[name] += 1
        found[joined(path, name if count[name] == 1 else f"{name}_{count[name]}")] = variable
  return found


def names_of(step: Any) -> dict[str, str]:
  """The names of the weights of all networks, and of their averages, by path in a checkpoint."""
  names: dict[int, str] = {}
  for path, network in networks_of(step).items():
    for name, variable in weights_in(network).items():
      names.setdefault(id(variable.value), joined(path, name))
  for _, optimizer in held_by(step, (Optimizer,)):
    if optimizer.averages:
      for average, variable in zip(optimizer.averages, optimizer.variables_updated, strict=True):
        if id(variable.value) in names:
          names[id(average.value)] = AVERAGE + names[id(variable.value)]
  return {path: names[id(v)] for path, v in variables_of(step).items() if id(v) in names}


def moved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
  """Descriptions of the weights that are in the place of another one, by path.

  Both map paths in a checkpoint to names. A name that exists only before or only now may be a new
  name of the same weight.
  """
  known, present = set(before.values()), set(now.values())
  return {path: f"was {name} and is {now[path]}" for path, name in before.items()
          if now.get(path, name) != name and (name in present or now[path] in known)}


def others_of(step: Any) -> list[str]:
  """The attributes of a step with variables that are of no network and no optimizer."""
  named = names_of(step)
  optimizers = tuple(f"{path}/" for path, _ in held_by(step, (Optimizer,)))
  return list(dict.fromkeys(path.partition("/")[0] for path in variables_of(step)
                            if path not in named and not path.startswith(optimizers)))


def joined(*parts: str) -> str:
  """A path; a network that is the step itself has an empty one."""
  return "/".join(filter(None, parts))


def _attributes(layer: keras.layers.Layer) -> dict[int, str]:
  """The first public attributes that lead to layers and variables, by the id of these."""
  found: dict[int, str] = {}
  for name, value in vars(layer).items():
    if not name.startswith("_") and isinstance(value, _HOLDERS):
      for path, item in held_by(value, (keras.layers.Layer, keras.Variable)):
        found.setdefault(id(item), joined(name, path))
  return found
