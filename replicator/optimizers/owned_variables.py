"""The variables that an optimizer owns, and the gradients for them."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from replicator.errors import UsageError


def checked(name: str, variables: Sequence) -> list[keras.Variable]:
  """The variables of the optimizer of this name, in a list.

  Raises:
    UsageError: there are none, or one is not a Keras variable or comes twice.
  """
  where = f"wrap_optimizer({name})"
  owned = list(variables)
  if not owned:
    raise UsageError(f"{where}: no variables; pass the trainable_variables of a network that is "
                     "already built: begin it with keras.Input(shape), or call its build")
  for variable in owned:
    if not isinstance(variable, keras.Variable):
      raise UsageError(f"{where}: {getattr(variable, 'name', variable)!r} is a "
                       f"{type(variable).__name__}; make it a keras.Variable")
    if sum(v is variable for v in owned) > 1:
      raise UsageError(f"{where}: the variable '{variable.path}' is given twice; list it once")
  return owned


def matched(name: str, owned: Sequence[keras.Variable], gradients: Sequence[tf.Tensor | None],
            variables: Sequence[keras.Variable] | None) -> dict[int, tf.Tensor]:
  """The gradients by the id of their variable, without None and those of frozen variables.

  `variables` are None, or the `owned` ones of the optimizer of this name again, possibly without
  those that are frozen.

  Raises:
    UsageError: the variables are not the owned ones, the number of gradients does not match, or
      every gradient is None.
  """
  gradients = list(gradients)
  unfrozen = [v for v in owned if v.trainable]
  if variables is not None and _ids(variables) not in (_ids(owned), _ids(unfrozen)):
    raise UsageError(f"{name}.apply: given other variables than the {len(owned)} it was wrapped "
                     "with; an optimizer owns its variables, in the order of "
                     "wrap_optimizer(optimizer, variables)")
  expected = unfrozen if len(gradients) == len(unfrozen) else owned
  if len(gradients) != len(expected):
    raise UsageError(f"{name}.apply: {len(gradients)} gradients for {len(expected)} variables; "
                     "only frozen variables need no gradient")
  pairs = [(g, v) for g, v in zip(gradients, expected, strict=True) if v.trainable]
  if pairs and all(g is None for g, _ in pairs):
    raise UsageError(f"{name}.apply: all {len(pairs)} gradients are None; the loss does not depend "
                     f"on {pairs[0][1].path} or the others, or it (or its scale_loss) was computed "
                     "outside the tape")
  return {id(v): tf.convert_to_tensor(g) for g, v in pairs if g is not None}


def _ids(variables: Sequence[keras.Variable]) -> list[int]:
  return [id(v) for v in variables]
