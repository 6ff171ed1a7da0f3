"""Checks of steps with planted bugs, and quantities as the doctor records them."""

import numpy as np

from replicator.doctor import replica_check
from replicator.doctor.verdict import CheckResult
from tests.programs import planted_bugs

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
