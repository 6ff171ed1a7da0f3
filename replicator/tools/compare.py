"""Compares runs side by side, in the terminal and on a page.

    replicator compare RUN RUN... [--seeds] [--output=compare.html]

Reads the workdirs of finished and unfinished runs. Exit status: 0; 2 for a bad command line or a
folder without a run.
"""

import itertools
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence

from replicator import atomic
from replicator.configuration import differences
from replicator.configuration.literals import literal
from replicator.console.command import Parser, status_of
from replicator.console.formatting import format_duration, format_number
from replicator.errors import UsageError
from replicator.tools import seeds
from replicator.training.workdir import pages, reader
from replicator.training.workdir.places import refuse_url
from replicator.training.workdir.reader import Run

import numpy as np
from rich.console import Console
from rich.table import Column, Table

Rows = dict[str, list[str]]  # By row name, the text for each run.

_LAST, _MEANS = "last (lowest to highest)", "mean of the last ± standard deviation"
_WIDTH = 20  # Minimum characters per run in the terminal; longer text wraps.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_compare, argv, describe=None)


def _compare(words: list[str]) -> int:
  parser = Parser(description="Shows runs side by side.")
  parser.add_argument("runs", nargs="+", metavar="RUN", type=os.path.expanduser,
                      help="the workdir of a run, a folder or a URL")
  parser.add_argument("--output", default="compare.html", metavar="FILE", type=os.path.expanduser,
                      help="the page to write")
  parser.add_argument("--seeds", action="store_true",
                      help="show runs that differ only in their seed as one: the mean and the "
                      "standard deviation")
  flags = parser.parse_args(words)
  found = read(flags.runs)
  title, table = _LAST, metrics(found)
  if flags.seeds:
    groups = seeds.grouped(found)
    title, table = _MEANS, seeds.metrics(groups)
    found = {label: seeds.mean_of(runs) for label, runs in groups.items()}
  refuse_url(flags.output, "--output", "choose a file")
  output = pathlib.Path(flags.output)
  text = page(found, title, table)
  try:
    atomic.write_whole(output, text)
  except (OSError, ValueError) as error:
    why = error.strerror if isinstance(error, OSError) else "it is not the name of a file"
    raise UsageError(f"--output={output}: cannot be written ({why})") from error
  _print(found, title, table)
  print(f"wrote {output}")
  return 0


def read(folders: Sequence[str]) -> dict[str, Run]:
  """Reads runs by name, or by path if names repeat; raises a UsageError if one is not a run."""
  found = [reader.read(folder) for folder in folders]
  for folder, run in zip(folders, found, strict=True):
    if not run.rows and not run.facts:
      raise UsageError(f"'{folder}': is not a run: neither run.json nor metrics.jsonl can be read; "
                       "give the workdir of a run")
  names = [run.folder.resolve().name for run in found]
  return {name if names.count(name) == 1 else str(run.folder): run
          for name, run in zip(names, found, strict=True)}


def facts(found: Mapping[str, Run]) -> Rows:
  """Returns the status and the main facts of each run."""
  def of(name: str) -> list[str]:
    values = [run.facts.get(name) for run in found.values()]
    return ["" if value is None else str(value) for value in values]

  seconds = [(run.rows or [{}])[-1].get("seconds") for run in found.values()]
  table = {
      "status": [run.status()[1] for run in found.values()],
      "experiment": of("experiment"),
      "training time": ["" if each is None else format_duration(each) for each in seconds],
      "strategy": of("strategy"), "replicas": of("num_replicas"), "precision": of("precision"),
      "batch": of("global_batch_size"), "seed": of("seed"), "started": of("started"),
      "commit": [commit[:10] + "+" * commit.endswith("+") for commit in of("git_commit")],
      "resumed": [", ".join(f"at step {entry['step']}" for entry in run.facts.get("resumed") or [])
                  for run in found.values()],
  }
  return {name: texts for name, texts in table.items() if any(texts)}


def metrics(found: Mapping[str, Run]) -> Rows:
  """Returns the last value of each metric, with the lowest and highest."""
  series = [run.series() for run in found.values()]
  return {name: [_summary(each[name][1]) if name in each else "" for each in series]
          for name in _names(found)}


def _summary(values: np.ndarray) -> str:
  finite = values[np.isfinite(values)]
  spread = (f" ({format_number(finite.min())} to {format_number(finite.max())})"
            if len(finite) > 1 else "")
  return format_number(values[-1]) + spread


def _names(found: Mapping[str, Run]) -> list[str]:
  return reader.in_groups(dict.fromkeys(
      itertools.chain(*(run.series() for run in found.values()))))


def configuration(found: Mapping[str, Run]) -> Rows:
  """Returns the values of `config.gin` that differ between the runs that have the file."""
  values = [_values(run) for run in found.values()]
  names = sorted(set(itertools.chain(*values)))
  table = {name: [each.get(name, "") for each in values] for name in names}
  return {name: texts for name, texts in table.items() if len(
      {text for text, each in zip(texts, values, strict=True) if each}) > 1}


def _values(run: Run) -> dict[str, str]:
  try:
    return {name: literal(value) for name, value in differences.values(run.config).items()}
  except ValueError:
    return {"config.gin": "cannot be read"}


def _print(found: Mapping[str, Run], title_of_metrics: str, of_metrics: Rows) -> None:
  """Prints the tables; runs that do not fit the terminal's width go below the others."""
  console = Console(markup=False, highlight=False, emoji=False)
  labels = list(found)
  tables = {"": facts(found), title_of_metrics: of_metrics,
            "configuration differences": configuration(found)}
  size = max(1, console.width // _WIDTH - 1)
  for begin in range(0, len(labels), size):
    part = slice(begin, begin + size)
    columns = [Column(label, overflow="fold") for label in ("", *labels[part])]
    drawn = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, table in tables.items():
      if title and table:
        drawn.add_row()
        drawn.add_row(title, style="bold")
      for name, texts in table.items():
        drawn.add_row(name, *texts[part])
    console.print(drawn, "")


def page(found: Mapping[str, Run], title_of_metrics: str, of_metrics: Rows) -> str:
  """Renders the same tables, charts shared by all runs, and the last samples, as HTML."""
  return pages.render(
      "compare.html", title=" and ".join(found) if len(found) < 4 else f"{len(found)} runs",
      what="Comparison of runs", badges=[], labels=list(found), facts=facts(found),
      title_of_metrics=title_of_metrics, metrics=of_metrics, charts=list(_panels(found)),
      configuration=configuration(found),
      pictures=[pages.picture(run.samples[-1], label)
                for label, run in found.items() if run.samples])


def _panels(found: Mapping[str, Run]) -> Iterator[pages.Panel]:
  steps = [row["step"] for run in found.values() for row in run.rows]
  of_runs = [run.series() for run in found.values()]
  nothing = np.zeros(0), np.zeros(0)
  for name in _names(found):
    yield pages.panel(name, [series.get(name, nothing) for series in of_runs],
                      (min(steps), max(steps)), names=list(found))


if __name__ == "__main__":
  sys.exit(main())
