"""`--from_step=N`: continues a run from an earlier checkpoint, and sets aside what came after it.

A command goes back only once: when it is restarted after a kill, or by a cluster manager, it
resumes. With changed settings it goes back again, because its steps would differ.
"""

import re

from replicator.configuration import annotations, statements
from replicator.configuration.literals import literal
from replicator.errors import UsageError
from replicator.training.run import Run
from replicator.training.workdir import reader
from replicator.training.workdir.set_aside import set_aside

_FACT = "from_step"  # The name of the fact in `run.json`.
_SAME_STEPS = re.compile(r"train\.(steps|\w+_every)$|Checkpoints\.")
"""Settings that do not change the numbers of a step."""

_wanted: int | None = None


def go_on_from(step: int | None) -> None:
  """Sets the step from which runs in this process continue; None for the newest checkpoint."""
  global _wanted
  _wanted = step


def wanted(run: Run) -> int | None:
  """Returns the step of the checkpoint to go back to; None to resume from the newest one.

  All workers must call it together. Raises a UsageError if nothing would be left to train.
  """
  if _wanted is not None and _wanted >= run.schedule.steps:
    raise UsageError(f"--from_step={_wanted}: nothing is left to train, since train.steps = "
                     f"{run.schedule.steps} is not above it")
  step = -1 if _wanted is None else _wanted
  if run.is_chief and step >= 0:
    earlier = reader.read_facts(run.workdir).get(_FACT) or {}
    if (earlier.get("step"), earlier.get("settings")) == (step, _settings()):
      run.say(f"--from_step={step}: the run already went back to it with these settings; "
              "resuming")
      step = -1
  agreed = int(run.replicator.by_worker(step)[0])
  return None if agreed < 0 else agreed


def leave_behind(run: Run) -> tuple[dict[str, dict], str]:
  """Sets aside what came after `run.step`; returns a fact for `run.json` and a line to print."""
  folder, line = set_aside(run.workdir, run.step)
  return {_FACT: {"step": run.step, "set_aside": folder, "settings": _settings()}}, line


def _settings() -> dict[str, str]:
  return {each.name: literal(annotations.resolved(each.value)) for each in statements.last_read()
          if not each.is_macro and not _SAME_STEPS.match(each.name)}
