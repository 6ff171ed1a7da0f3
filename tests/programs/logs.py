"""The log of a run."""

import json
import pathlib

from replicator.workdir.reader import TIMES


def timed_rows(workdir: pathlib.Path) -> list[dict]:
  """The rows of `metrics.jsonl`, which must all be whole."""
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def rows(workdir: pathlib.Path) -> list[dict]:
  """The same without what a clock measured, which no other run repeats."""
  return [{name: value for name, value in row.items() if name not in TIMES}
          for row in timed_rows(workdir)]
