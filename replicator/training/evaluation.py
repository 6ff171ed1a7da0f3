"""The result of an evaluation."""

import dataclasses
from typing import Any

from replicator.errors import UsageError
from replicator.training.workdir import writer

import numpy as np


@dataclasses.dataclass
class Evaluation:
  """The result of an evaluation.

  Attributes:
    scalars: numbers by name, logged under `eval/`.
    images: uint8 `[h, w, 3]`, or floats from 0 to 1, by name; see `Writer.images`. The image named
      'samples' is written to `samples/step-NNNNNNNN.png`.
    method: one line about how the scalars were computed; kept in `run.json`.
    axes: names of scalars, such as 'environment_steps', against which the report plots the others
      in addition to the step; kept in `run.json` under their logged names.
    histograms: arrays of any shape, by name, whose values TensorBoard shows as a histogram.

  Raises a UsageError if a scalar is not a single number, an image does not have this form, or a
  histogram has no numbers.
  """

  scalars: dict[str, float]
  images: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  method: str = ""
  axes: tuple[str, ...] = ()
  histograms: dict[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for name, check in (("scalars", writer.checked_scalar), ("images", writer.checked_image),
                        ("histograms", writer.checked_histogram)):
      values = getattr(self, name)
      if not isinstance(values, dict):
        raise UsageError(f"Evaluation: the {name} are a {type(values).__name__}; pass a dict, "
                         f"{writer.EXAMPLES[name]}")
      setattr(self, name, {key: check("Evaluation", key, value) for key, value in values.items()})
