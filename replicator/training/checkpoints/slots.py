"""The variables of Keras optimizers in a checkpoint, identified by their roles.

Their paths are indices in `optimizer.variables`. With a different optimizer, or a schedule instead
of a learning rate variable, the same index means something else, such as a momentum in place of a
mean square. So a checkpoint keeps the role of each: `optimizer/keras_1a2b/momentums/0`.

The learning rate is part of the configuration: a run that resumes with a different rate must use
the new one, not that of the checkpoint. A rate that the step itself assigns is part of its state:
it is restored as long as the configuration is the same. A schedule is not a variable.
"""

from collections.abc import Mapping
from typing import Any

from replicator.internals.keras_internals import optimizer_variables
from replicator.step.replicated import copies_of
from replicator.step.variables import held_by

import keras
import numpy as np

_RATE = "learning_rate"  # The last part of its role.


class Slots:
  """The roles of a step's optimizer variables, and the current learning rates.

  `variables` come from `step.variables.variables_of`.
  """

  def __init__(self, step: Any, variables: Mapping[str, Any]):
    optimizers = list(held_by(step, (keras.optimizers.Optimizer,)))
    role_of = {id(variable.value): f"{path}/{role}" for path, optimizer in optimizers
               for role, variable in optimizer_variables(optimizer).items()}
    self._roles = {path: role_of[id(variable)] for path, variable in variables.items()
                   if id(variable) in role_of}
    self._rates = {path: copies_of(variables[path])[0].read_value().numpy()
                   for path, role in self._roles.items() if role.endswith(f"/{_RATE}")}

  def facts(self) -> dict[str, dict]:
    """Returns the roles and rates that a checkpoint keeps, as JSON."""
    return {"roles": self._roles,
            "rates": {path: float(rate) for path, rate in self._rates.items()}}

  def placed(self, values: dict[str, np.ndarray], facts: Mapping[str, Any]
             ) -> dict[str, np.ndarray]:
    """Moves the values of a checkpoint with these `facts` to the current paths of their roles.

    A value whose role no longer exists is named by its old role, or dropped if it is a rate. A rate
    that is new, or configured differently than before, gets the configured value.
    """
    place_of = {role: path for path, role in self._roles.items()}
    roles = facts["roles"]
    moved = {path: place_of.get(role, "" if role.endswith(f"/{_RATE}") else role)
             for path, role in roles.items()}
    values = {**self._rates, **{place: value for path, value in values.items()
                                if (place := moved.get(path, path))}}
    rates = {moved[path]: rate for path, rate in facts["rates"].items() if moved.get(path)}
    changed = {path: self._rates[path] for path, rate in rates.items()
               if path in values and path in self._rates and self._rates[path] != rate}
    return {**values, **changed}
