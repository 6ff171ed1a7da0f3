"""The outcome of an evaluation."""

import dataclasses
from typing import Any

from replicator.errors import UsageError
from replicator.training.workdir import writer

import numpy as np


@dataclasses.dataclass
class Evaluation:
  """The outcome of an evaluation.

  Attributes:
    scalars: logged under `eval/`.
    images: uint8 `[h, w, 3]`, or floats from 0 to 1, by name; see `Writer.images`. The one that is
      called 'samples' is `samples/step-NNNNNNNN.png`.
    method: one line on how the scalars were computed; kept in `run.json`.
    axes: names of scalars, such as 'environment_steps', that the report draws the others against,
      besides the step; kept in `run.json` as they are logged.
    histograms: arrays of any shape, by name, whose values TensorBoard shows as a histogram.

  Raises a UsageError if a scalar is not one number, an image not of that form, or a histogram
  without numbers.
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
        raise UsageError(f"Evaluation: the {name} are a {type(values).__name__}; write a dict, "
                         f"{writer.EXAMPLES[name]}")
      setattr(self, name, {key: check("Evaluation", key, value) for key, value in values.items()})
