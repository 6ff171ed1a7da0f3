"""The variables of Keras optimizers in a checkpoint, found again by what they are.

Their paths are numbers in `optimizer.variables`. Another optimizer, or a learning rate that is no
variable because it is a schedule, gives the same number to something else, such as a momentum in
place of a mean square. So a checkpoint keeps the role of each: `optimizer/keras_1a2b/momentums/0`.

The learning rate is a number of the configuration. A run that resumes with another one must train
with it, and not with that of the checkpoint. A rate that the step itself assigns is a part of its
state: it comes back as long as the configuration is the same. A schedule is no variable.
"""

from collections.abc import Mapping
from typing import Any

from replicator.internals.keras_internals import optimizer_variables
from replicator.step.replicated import copies_of
from replicator.step.variables import held_by

import keras
import numpy as np

_RATE = "learning_rate"  # The end of its role.


class Slots:
  """The roles of the optimizers' variables of a step, and the learning rates as they are now.

  `variables` are those of `step.variables.variables_of`.
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
    """The roles and the rates that a checkpoint keeps, as JSON."""
    return {"roles": self._roles,
            "rates": {path: float(rate) for path, rate in self._rates.items()}}

  def placed(self, values: dict[str, np.ndarray], facts: Mapping[str, Any]
             ) -> dict[str, np.ndarray]:
    """The values of a checkpoint, with its `facts`, at the paths where their roles are now.

    What has no role now is named by the one it had, but for a rate. A rate that is configured
    otherwise than before, or is new, is the configured one.
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
