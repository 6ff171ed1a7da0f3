"""Runs one step eagerly, up to the first operation whose result is not finite."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from replicator.console.error_line import place_of
from replicator.console.formatting import format_number, labeled, listed
from replicator.errors import chain_of
from replicator.step.variables import variables_of
from replicator.strategies.compiled_step import CompiledStep
from replicator.training.checkpoints.names import names_of
from replicator.training.checkpoints.snapshot import Snapshot, Variables
from replicator.training.divergence import failures
from replicator.training.divergence.diagnostics import Signals
from replicator.training.divergence.failures import Failure
from replicator.training.run import Run

import numpy as np
import tensorflow as tf

_CLOSE = 1e-3  # The relative difference above which numbers count as different.
_MOST_LINES = 16  # The most lines about the inputs of the operation.


def replay(run: Run, failure: Failure, say: Callable[[str], None]) -> bool:
  """Runs a failed step again and reports what it finds; returns whether the step fails again.

  That step must be the run's next one. All functions of the process run eagerly from now on.
  """
  batch = failures.batch_of(failure, run.batch)
  for name, array in failures.arrays_of(batch).items() if batch is not None else ():
    say(labeled("batch", f"{name} {_described(array)}"))
  tf.config.run_functions_eagerly(True)
  variables, paths = Variables(variables_of(run.module)), names_of(run.module)
  before = variables.take()
  say(labeled("before", _weights(before, paths)))
  step = CompiledStep(run.replicator, run.module, logs=True,
                      hooks=[Signals(run.module)] if run.guard.signals else [])

  def values() -> dict[str, np.ndarray]:
    return step(failure.step - 1, batch).fetch()[0]

  first = _first_not_finite(values)
  variables.put(before)
  returned = values()
  for line in _returned({name: float(series[0]) for name, series in returned.items()}, failure):
    say(labeled("returned", line))
  for label, line in first or [("first", "every operation has a finite result")]:
    say(labeled(label, line))
  return run.guard.divergence_in(failure.step, returned) is not None


def _described(array: np.ndarray) -> str:
  text = f"{array.dtype.name} {list(array.shape)}"
  if array.dtype.kind not in "fiu" or not array.size:
    return text
  finite = array[np.isfinite(array)]
  if finite.size:
    text += f", from {format_number(finite.min())} to {format_number(finite.max())}"
  return text + (f", and {array.size - finite.size} not finite" if finite.size < array.size else "")


def _weights(before: Snapshot, names: Mapping[str, str]) -> str:
  broken = [names.get(path, path) for path, value in before.values.items()
            if value.dtype.kind == "f" and not np.isfinite(value).all()]
  return f"not finite: {listed(broken)}" if broken else "all variables are finite"


def _returned(values: Mapping[str, float], failure: Failure) -> list[str]:
  """Returns a line for each scalar of the step, with the value in the run if it was different."""
  lines = []
  for name, value in values.items():
    recorded = failure.recent[name][-1] if name in failure.recent else value
    is_same = np.isclose(value, recorded, _CLOSE, 0.0, equal_nan=True)
    lines.append(f"{name} {format_number(value)}" + (
        "" if is_same else f", but {format_number(recorded)} in the run"))
  return lines


def _first_not_finite(compute: Callable[[], Any]) -> list[tuple[str, str]]:
  """Returns labeled lines about the first operation with a non-finite result, if there is one."""
  tf.debugging.enable_check_numerics()
  try:
    compute()
  except tf.errors.InvalidArgumentError as error:
    return _lines_of(error)
  finally:
    tf.debugging.disable_check_numerics()
  return []


def _lines_of(error: tf.errors.InvalidArgumentError) -> list[tuple[str, str]]:
  text = str(chain_of(error)[-1])
  operation = re.search(r"""op "(?:b')?(\w+)'?\"""", text)  # TensorFlow has some names as bytes.
  if "Detected Infinity or NaN" not in text or not operation:
    raise error
  counts = re.findall(r"# of \+?(-?\w+) elements: (\d+)", text)
  shape = re.search(r"shape: \((.*)\)", text)
  what = ", ".join(f"{count} {kind}" for kind, count in counts)
  line = f"{operation[1]} has {what} in [{shape[1].rstrip(',') if shape else ''}]"
  inputs = text.partition("Input tensor")[2].partition(":")[2].rpartition(" : Tensor had")[0]
  if place := place_of(error):
    line += f", at {place}"
  given = [each.strip() for each in inputs.splitlines() if each.strip()]
  return [("first", line), *(("given", each) for each in given[:_MOST_LINES])]
