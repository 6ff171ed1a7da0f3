"""Groups runs that differ only in their seed: their means and standard deviations."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.configuration import differences
from replicator.configuration.literals import literal
from replicator.console.formatting import format_number
from replicator.training.workdir import reader
from replicator.training.workdir.reader import Run

import numpy as np

_SEED = re.compile(r"(^|.*[./])seed$")  # Such as train.seed.


def grouped(found: Mapping[str, Run]) -> dict[str, list[Run]]:
  """Groups runs whose values differ only in seeds, under a common name; a group may have one run.
  """
  groups: dict[str, dict[str, Run]] = {}
  for name, run in found.items():
    values = f"{run.facts.get('experiment')} {sorted(_values(run).items())}"
    groups.setdefault(values, {})[name] = run
  labeled: dict[str, list[Run]] = {}
  for group in groups.values():
    label = _label(list(group))
    labeled[label if label not in labeled else next(iter(group))] = list(group.values())
  return labeled


def _values(run: Run) -> dict[str, str]:
  """Returns a run's configuration without seeds; an unreadable one equals no other's."""
  try:
    return {name: literal(value) for name, value in differences.values(run.config).items()
            if not _SEED.match(name)}
  except ValueError:
    return {"folder": str(run.folder)}


def _label(names: Sequence[str]) -> str:
  """Returns the first name without its seed: `lr=0.1_seed=1, lr=0.1_seed=2 -> lr=0.1, 2 seeds`."""
  if len(names) == 1:
    return names[0]
  return f"{re.sub('[^a-zA-Z0-9]*seed.*', '', names[0]) or names[0]}, {len(names)} seeds"


def mean_of(runs: Sequence[Run]) -> Run:
  """Returns one run with the mean of each number, at the steps that all runs have logged."""
  first = runs[0]
  if len(runs) == 1:
    return first
  rows = []
  for same_step in zip(*_rows_at_common_steps(runs), strict=True):
    names = [name for name in same_step[0] if all(_is_number(row.get(name)) for row in same_step)]
    rows.append({**{name: float(np.mean([row[name] for row in same_step])) for name in names},
                 "step": same_step[0]["step"]})
  facts = {**first.facts, "seed": ", ".join(str(run.facts.get("seed", "?")) for run in runs),
           "resumed": []}
  config = re.sub(r"(?m)^(\S*[./])?seed *=.*$", "", first.config)
  return Run(first.folder, rows, 0, facts, config, first.samples, first.images)


def _rows_at_common_steps(runs: Sequence[Run]) -> list[list[dict[str, Any]]]:
  by_step: list[dict[int, dict[str, Any]]] = []
  for run in runs:
    rows: dict[int, dict[str, Any]] = {}
    for row in run.rows:
      rows.setdefault(row["step"], {}).update(row)
    by_step.append(rows)
  common = [step for step in by_step[0] if all(step in rows for rows in by_step)]
  return [[rows[step] for step in common] for rows in by_step]


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float)


def metrics(groups: Mapping[str, Sequence[Run]]) -> dict[str, list[str]]:
  """Returns the mean and sample standard deviation of each metric's last values."""
  of_groups = [[run.series() for run in runs] for runs in groups.values()]
  names = reader.in_groups(dict.fromkeys(
      name for series in of_groups for each in series for name in each))
  return {name: [_summary([each[name][1][-1] for each in series if name in each])
                 for series in of_groups] for name in names}


def _summary(values: Sequence[float]) -> str:
  if len(values) < 2:
    return format_number(values[0]) if values else ""
  return f"{format_number(float(np.mean(values)))} ± {float(np.std(values, ddof=1)):.2g}"
