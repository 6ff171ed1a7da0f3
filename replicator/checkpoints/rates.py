"""The learning rates that Keras optimizers keep in variables, so that checkpoints hold them.

Such a rate is a number of the configuration. A run that resumes with another one must train with
it, and not with that of the checkpoint. A rate that the step itself assigns is a part of its state:
it comes back as long as the configuration is the same. A schedule is no variable.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from replicator.step.replicated import copies_of
from replicator.step.variables import held_by

Rates = dict[str, float]  # By the paths of `step.variables.variables_of`.


def rates_of(step: Any, variables: Mapping[str, Any]) -> Rates:
  """The rates that the optimizers of a step have now; `variables` are those of the step."""
  held = [optimizer.learning_rate for _, optimizer in held_by(step, (keras.optimizers.Optimizer,))]
  ids = {id(rate.value) for rate in held if isinstance(rate, keras.Variable)}
  return {path: float(copies_of(variable)[0].read_value().numpy())
          for path, variable in variables.items() if id(variable) in ids}


def as_configured(values: dict[str, np.ndarray], before: Rates, now: Rates
                  ) -> dict[str, np.ndarray]:
  """The values of a checkpoint, with the rates that are configured otherwise `now` than `before`.

  Checkpoints of earlier versions do not say what was configured: their rates stay.
  """
  changed = {path: np.asarray(now[path], values[path].dtype) for path, rate in before.items()
             if path in values and now.get(path, rate) != rate}
  return {**values, **changed}
