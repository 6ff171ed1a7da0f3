"""Names for the layers and weights of a step's networks, built from attribute names.

A checkpoint identifies a weight by its number in a network, which changes with the network's size.
These names do not: `discriminator/blocks/0/shortcut/layer/kernel`. A name that the user gave a
layer, as in `keras.layers.Dense(4, name="code")`, replaces its position in a list or a
`keras.Sequential`: `encoder/code/kernel`.
"""

import collections
import re
from collections.abc import Iterable, Mapping
from typing import Any

from replicator.internals.keras_internals import sublayers_of
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by, parts_of_networks, variables_of

import keras

AVERAGE = "average of "  # The prefix of a moving average's name; the weight's name follows.
_UNNAMED = re.compile(r"variable(_\d+)?")  # Keras numbers unnamed variables per process.
_COUNT = re.compile(r"_\d+$")  # Keras also numbers the layers of a class.
_HOLDERS = (keras.layers.Layer, keras.Variable, list, tuple, dict)  # May contain layers.


def networks_of(step: Any) -> dict[str, keras.layers.Layer]:
  """Returns the networks of a step, by path: its outermost Keras layers with variables."""
  return {path: network for path, network in held_by(step, (keras.layers.Layer,))
          if network.variables}


def layers_in(network: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
  """Returns the layers in a network by name, each before those inside it.

  A layer with neither a name from the user nor a public attribute, as in a `keras.Sequential`, is
  named by its class, and numbered among those of its class: `layers/dense`, `layers/dense_1`.
  """
  found: dict[str, keras.layers.Layer] = {}
  seen: set[int] = set()

  def visit(parent: keras.layers.Layer, prefix: str) -> None:
    names = _names_in(parent)
    for layer in sublayers_of(parent):
      if id(layer) not in seen:
        seen.add(id(layer))
        path = prefix + names[id(layer)]
        found[path] = layer
        visit(layer, f"{path}/")

  visit(network, "")
  return found


def _names_in(parent: keras.layers.Layer) -> dict[int, str]:
  """Returns the names of the layers directly inside a layer, by id."""
  attributes, layers = _attributes(parent), sublayers_of(parent)
  names = {id(layer): attributes.get(id(layer), "") for layer in layers}
  given = {}
  for layer in layers:
    owner, _, last = names[id(layer)].rpartition("/")
    if (not last or last.isdigit()) and (name := _given_name(layer)):
      given[id(layer)] = joined(owner, name)
  count = collections.Counter({**names, **given}.values())
  names.update({key: name for key, name in given.items() if count[name] == 1})
  of_class = collections.Counter[str]()
  for layer in layers:
    if not names[id(layer)]:
      kind = _COUNT.sub("", layer.name)
      number = f"_{of_class[kind]}" if of_class[kind] else ""
      names[id(layer)] = f"layers/{kind}{number}"
      of_class[kind] += 1
  return names


def _given_name(layer: keras.layers.Layer) -> str:
  """Returns the name that the user gave a layer; empty if Keras made it from the class."""
  made = type(layer).__name__.replace("_", "").lower()
  return "" if _COUNT.sub("", layer.name).replace("_", "") == made else layer.name


def in_order(names: Iterable[str]) -> dict[str, int]:
  """Counts the layers of each class named only by position: `{"encoder/layers/dense": 3}`."""
  layers = set[tuple[str, str]]()
  for parts in (name.split("/") for name in names):
    for place, part in enumerate(parts[:-2]):
      if part == "layers":
        layers.add((_COUNT.sub("", "/".join(parts[:place + 2])), parts[place + 1]))
  return dict(collections.Counter(kind for kind, _ in sorted(layers)))


def blocks_in(network: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
  """Returns the layers and blocks directly in a network that have variables, by name.

  They are in the order of the network's attributes.
  """
  direct = {id(layer) for layer in sublayers_of(network) if layer.variables}
  return {name: layer for name, layer in layers_in(network).items() if id(layer) in direct}


def weights_in(network: keras.layers.Layer) -> dict[str, keras.Variable]:
  """Returns the variables of a network by name: the layer's name, then the variable's own."""
  found: dict[str, keras.Variable] = {}
  seen: set[int] = set()
  # Inner layers first: a layer's variables also belong to the layers around it.
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
  """Returns the names of all networks' weights and their averages, by path in a checkpoint.

  The variables of `parts_of_networks` count as weights too.
  """
  names: dict[int, str] = {}
  for path, network in networks_of(step).items():
    for name, variable in weights_in(network).items():
      names.setdefault(id(variable.value), joined(path, name))
  for path, part in parts_of_networks(step).items():
    for name, variable in part.taken_with_networks().items():
      names[id(variable)] = joined(path, name)
  for _, optimizer in held_by(step, (Optimizer,)):
    if optimizer.averages:
      for average, variable in zip(optimizer.averages, optimizer.variables_updated, strict=True):
        if id(variable.value) in names:
          names[id(average.value)] = AVERAGE + names[id(variable.value)]
  return {path: names[id(v)] for path, v in variables_of(step).items() if id(v) in names}


def moved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
  """Describes weights whose path now belongs to a different weight, by path.

  Both arguments map paths in a checkpoint to names. If a name exists only before or only now, the
  weight may just have been renamed.
  """
  known, present = set(before.values()), set(now.values())
  return {path: f"was {name} and is {now[path]}" for path, name in before.items()
          if now.get(path, name) != name and (name in present or now[path] in known)}


def others_of(step: Any) -> list[str]:
  """Returns the step's attributes whose variables belong to neither a network nor an optimizer."""
  named = names_of(step)
  optimizers = tuple(f"{path}/" for path, _ in held_by(step, (Optimizer,)))
  return list(dict.fromkeys(path.partition("/")[0] for path in variables_of(step)
                            if path not in named and not path.startswith(optimizers)))


def joined(*parts: str) -> str:
  """Joins the parts of a path; the path of a network that is the step itself is empty."""
  return "/".join(filter(None, parts))


def _attributes(layer: keras.layers.Layer) -> dict[int, str]:
  """Returns the first public attribute that leads to each layer and variable, by id."""
  found: dict[int, str] = {}
  for name, value in vars(layer).items():
    if not name.startswith("_") and isinstance(value, _HOLDERS):
      for path, item in held_by(value, (keras.layers.Layer, keras.Variable)):
        found.setdefault(id(item), joined(name, path))
  return found
