"""Trains a tiny step with every layer and feature under every strategy, and prints a table.

    python -m tests.programs.capabilities > docs/reference/capabilities.md

With `--strategy=mirrored` it trains under that one only, and prints the losses as JSON.
"""

import argparse
import contextlib
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import replicator
from replicator import Replicator, UsageError
from replicator.app import config
from replicator.errors import first_line
from replicator.strategies import strategy as strategies
from replicator.strategies.compiled_step import CompiledStep
from replicator.training.inputs.pipeline import stream
from replicator.training.prepared import run_until_prepared
from replicator.training.run import Run
from tests.programs.features import FEATURES, Feature
from tests.programs.planted_bugs import Points
from tests.programs.processes import launched

import gin
import keras
import numpy as np
import tensorflow as tf

BATCH, STEPS = 16, 4
REPLICAS = {"one_device": 1, "mirrored": 2, "central_storage": 2, "multi_worker_mirrored": 2,
            "parameter_server": 1}
CLUSTERS = {"multi_worker_mirrored": ["--workers=2"],
            "parameter_server": ["--workers=2", "--ps=1"]}

Outcome = dict[str, Any]
"""`{"losses": [...]}`, or `{"refused": the message}`."""


# ---- Training -----------------------------------------------------------------------------------


def train(feature: Feature, strategy: str, bindings: tuple[str, ...]) -> list[float]:
  """All losses of a few steps, which start and run as in `replicator.train`."""
  split = any("devices_per_replica" in binding for binding in bindings)
  cpus = None if strategy in CLUSTERS else REPLICAS[strategy] * (2 if split else 1)
  config.parse([], [
      f"train.steps = {STEPS}", "train.steps_per_call = 1", "train.check_first_step = False",
      f"train.log_every = {STEPS}",
      f"train.global_batch_size = {BATCH}", "train.eval_every = 0", "train.checkpoint_every = 0",
      f"train.precision = '{feature.precision}'", f"Replicator.strategy = '{strategy}'",
      f"Replicator.logical_cpus = {cpus}", *bindings])
  keras.backend.clear_session()  # Keras names start again, as in a new process.
  with eagerly() if feature.eager else contextlib.nullcontext():
    return run_until_prepared(lambda workdir: replicator.train(
        lambda: feature.make(REPLICAS[strategy]), Points(), workdir=workdir), losses_of)


def losses_of(run: Run) -> list[float]:
  """Runs the steps of a prepared training in place of the training loop, which writes files."""
  steps_per_call = gin.query_parameter("train.steps_per_call")
  function = CompiledStep(run.replicator, run.module, steps_per_call, logs=True)
  examples = stream(run.inputs, run.input_context, 0, steps_per_call)
  calls = zip(range(0, STEPS, steps_per_call), examples, strict=False)
  running = [function(first, batch) for first, batch in calls]
  examples.close()
  values = [result.fetch()[0] for result in running]
  return [float(x) for by_name in values for name in sorted(by_name)
          if name != "staleness" for x in by_name[name]]


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
  """Runs compiled functions line by line inside."""
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run_functions")
    tf.config.run_functions_eagerly(True)
    try:
      yield
    finally:
      tf.config.run_functions_eagerly(False)


def outcome(feature: Feature, strategy: str, bindings: tuple[str, ...]) -> Outcome:
  """The outcome of a feature under a strategy."""
  try:
    return {"losses": train(feature, strategy, bindings)}
  except UsageError as error:
    place = r"^\S+\.py:\d+: | \(in the layer \S+\)$"
    return {"refused": re.sub(place, "", first_line(error))}


def references(on_one_device: dict[str, Outcome]) -> dict[str, Outcome]:
  """The outcomes of every step on one device, without the features' settings, if they have any."""
  return {name: outcome(feature, "one_device", ()) if feature.bindings else on_one_device[name]
          for name, feature in FEATURES.items()}


def outcomes(strategy: str) -> dict[str, Outcome]:
  """The outcomes of every feature under a strategy, in this process."""
  return {name: outcome(feature, strategy, feature.bindings) for name, feature in FEATURES.items()}


def cluster_outcomes(strategy: str) -> dict[str, Outcome]:
  """The outcomes of every feature under a strategy, in the processes of a cluster."""
  done = launched(CLUSTERS[strategy], "tests.programs.capabilities", f"--strategy={strategy}")
  first = re.search(r"^\[(?:worker|chief) 0\] (\{.*\})$", done.stdout, re.MULTILINE)
  assert first, done.stdout
  return json.loads(first[1])


# ---- The table ----------------------------------------------------------------------------------

COMMAND = "python -m tests.programs.capabilities > docs/reference/capabilities.md"
INTRODUCTION = f"""\
# What runs under which strategy

Written by `{COMMAND}`, which trains a tiny
network with each layer and feature for {STEPS} steps; `tests/test_capabilities.py` checks it.

- **same**: the losses are those of one device without the feature's setting, to 1e-9 relative in
  float64; in half precision they are those of one device in it, to 1e-2.
- **differs**: its losses differ from those of one device. `train` says so at its first step, and
  ends a run whose copies of a variable differ, as those of Keras' `BatchNormalization` do.
- **runs**: each step runs on one replica with the whole batch, and steps overtake each other; its
  losses are finite.
- **refused**: it ends before the first step, with an error of one line that has the remedy.
- **never run**: there was no TPU to try. The others ran on CPUs.
"""


def cell(feature: Feature, strategy: str, found: Outcome, reference: Outcome) -> str:
  """The word in the table for an outcome that was not refused."""
  assert np.isfinite(found["losses"]).all(), (strategy, found)
  if strategy == "parameter_server":
    return "runs"
  rtol = 1e-9 if feature.precision == "float64" else 1e-2  # Beyond it is another training.
  close = np.allclose(found["losses"], reference["losses"], rtol, atol=0)
  return "same" if close else "differs"


def table(by_strategy: dict[str, dict[str, Outcome]], reference: dict[str, Outcome]) -> str:
  """The page: the table, and the reasons of refusals."""
  columns = [*by_strategy, "tpu"]
  lines = [INTRODUCTION, f"| | {' | '.join(f'`{name}`' for name in columns)} |",
           f"|{' --- |' * (1 + len(columns))}"]
  reasons: list[str] = []
  for name, feature in FEATURES.items():
    cells = []
    for strategy, found in by_strategy.items():
      if "refused" in found[name]:
        if found[name]["refused"] not in reasons:
          reasons.append(found[name]["refused"])
        cells.append(f"refused[^{reasons.index(found[name]['refused']) + 1}]")
      else:
        cells.append(cell(feature, strategy, found[name], reference[name]))
    lines.append(f"| {' | '.join([name, *cells, 'never run'])} |")
  notes = [f"[^{number}]: `{reason}`" for number, reason in enumerate(reasons, 1)]
  return "\n".join([*lines, "", *notes, ""])


def page() -> str:
  """Runs everything, in about two minutes."""
  strategies.make("mirrored", 4, None, 2)  # Splits the CPU into devices.
  by_strategy = {name: cluster_outcomes(name) if name in CLUSTERS else outcomes(name)
                 for name in REPLICAS}
  return table(by_strategy, references(by_strategy["one_device"]))


if __name__ == "__main__":
  parser = argparse.ArgumentParser()
  parser.add_argument("--strategy", choices=REPLICAS)
  chosen = parser.parse_args().strategy
  if chosen:
    Replicator(chosen)  # A cluster requires this before any computation.
    print(json.dumps(outcomes(chosen)))
  else:
    print(page(), end="")
