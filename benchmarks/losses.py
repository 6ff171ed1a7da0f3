"""The losses that runs have logged, and how far those of two runs differ."""

import pathlib

from replicator.training.workdir import reader

import numpy as np

Losses = dict[str, np.ndarray]
"""The values of each loss at steps 1, 2, ..., by name."""


def logged(workdir: pathlib.Path) -> Losses:
  """Reads the losses of a run that logged every step."""
  return {name: values for name, (_, values) in reader.read(workdir).series().items()
          if name.startswith("loss/")}


def differences(losses: Losses, reference: Losses) -> np.ndarray:
  """Returns the largest relative difference of any loss at each step."""
  return np.max([np.abs(losses[name] - values) / np.abs(values)
                 for name, values in reference.items()], axis=0)
