"""The variables that an optimizer owns, network by network, and the gradients for them."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from replicator.errors import UsageError

Nest = Sequence | Mapping[str, Sequence]
"""Variables or gradients: a list, or a dict with a list for each network."""


class Networks:
  """The variables of one optimizer, whose `name` is for errors.

  `by_name` holds those of each network, sorted by its name, which is empty for a plain list;
  `variables` holds all, in the same order.

  Raises:
    UsageError: a network has no variables, or a variable is not a Keras variable or comes twice.
  """

  def __init__(self, name: str, variables: Nest):
    self._name = name
    self.by_name = _by_name(variables)
    self.variables = [v for owned in self.by_name.values() for v in owned]
    where = f"wrap_optimizer({name})"
    if not all(self.by_name.values()):
      raise UsageError(f"{where}: no variables; pass the trainable_variables of a network that is "
                       "already built: begin it with keras.Input(shape), or call its build")
    for variable in self.variables:
      if not isinstance(variable, keras.Variable):
        raise UsageError(f"{where}: {getattr(variable, 'name', variable)!r} is a "
                         f"{type(variable).__name__}; make it a keras.Variable")
      if sum(v is variable for v in self.variables) > 1:
        raise UsageError(f"{where}: the variable '{variable.path}' is given twice; list it once")

  def in_nest(self, values: Sequence) -> list | dict[str, list]:
    """Values, one for each of `variables`, in the nest that the variables were given in."""
    rest = iter(values)
    nested = {name: [next(rest) for _ in owned] for name, owned in self.by_name.items()}
    return nested.get("", nested)

  def match(self, gradients: Nest, variables: Nest | None) -> dict[int, tf.Tensor]:
    """The gradients by the id of their variable, without None and those of frozen variables.

    `variables` are None, or the owned variables again, possibly without those that are frozen.

    Raises:
      UsageError: the variables are not the owned ones, the number of gradients does not match, or
        every gradient is None.
    """
    given = _by_name(gradients)
    unfrozen = {name: [v for v in owned if v.trainable] for name, owned in self.by_name.items()}
    if variables is not None and _ids(_by_name(variables)) not in (
        _ids(self.by_name), _ids(unfrozen)):
      raise UsageError(f"{self._name}.apply: given other variables than the "
                       f"{_count(self.by_name)} it was wrapped with; an optimizer owns "
                       "its variables, in the order of wrap_optimizer(optimizer, variables)")
    expected = unfrozen if _count(given) == _count(unfrozen) else self.by_name
    if _count(given) != _count(expected):
      raise UsageError(f"{self._name}.apply: {_count(given)} gradients for {_count(expected)} "
                       "variables; only frozen variables need no gradient")
    pairs = [(g, v) for name in given for g, v in zip(given[name], expected[name], strict=True)
             if v.trainable]
    if pairs and all(g is None for g, _ in pairs):
      raise UsageError(f"{self._name}.apply: all {len(pairs)} gradients are None; the loss "
                       f"does not depend on {pairs[0][1].path} or the others, or it (or its "
                       "scale_loss) was computed outside the tape")
    return {id(v): tf.convert_to_tensor(g) for g, v in pairs if g is not None}


def _by_name(nest: Nest) -> dict[str, list]:
  if isinstance(nest, Mapping):
    return {name: list(nest[name]) for name in sorted(nest)}
  return {"": list(nest)}


def _ids(networks: dict[str, list]) -> dict[str, list[int]]:
  return {name: [id(v) for v in variables] for name, variables in networks.items()}


def _count(networks: dict[str, list]) -> int | dict[str, int]:
  counts = {name: len(values) for name, values in networks.items()}
  return counts.get("", counts)
