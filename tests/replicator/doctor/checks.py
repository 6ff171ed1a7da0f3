"""Checks of steps with planted bugs, and quantities as the doctor records them."""

from replicator.doctor import replica_check
from replicator.doctor.verdict import CheckResult
from replicator.training.checks import diagnosis
from replicator.training.checks.inspection import Evidence
from tests.programs import planted_bugs

import numpy as np

SMALL = ["train.global_batch_size = 8"]


def examine(*params: str, main=planted_bugs.main, **settings) -> replica_check.ReplicaCheck:
  found = replica_check.ReplicaCheck(main, [], [*SMALL, *params], **{"steps": 2, **settings})
  found.prepare()
  return found


def planted(bug: str) -> str:
  return f"Regression.bug = '{bug}'"


def largest(row: CheckResult) -> float:
  return float(row.detail.split()[0])


def quantities(kind: str, step: int = 1, **values) -> dict:
  return {(step, kind, name.replace("__", ": ")): np.asarray(value)
          for name, value in values.items()}


def cause(one: dict, changes: dict, seen: Evidence | None = None, parts: int = 2,
          microbatches: bool = False) -> str:
  """The likely cause of `changes` to the quantities of `parts` replicas or micro-batches."""
  seen = seen or Evidence(lambda: None)
  seen.batch_size = 8
  other = one | changes
  first = diagnosis.compare(one, other, 1e-9)[1]
  return diagnosis.Case(one, seen, other, first, parts, microbatches, 1e-9).cause()
