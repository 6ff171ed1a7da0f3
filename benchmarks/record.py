"""Tables of numbers, printed as they are measured, and saved as data for the documentation.

With `--record=NAME`, a benchmark also writes `benchmarks/results/NAME.json`: its command, the
commit, the date, the machine, the versions, and its tables. `python -m benchmarks.pages` puts them
into the documentation.
"""

import contextlib
import datetime
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from replicator import atomic
from replicator.training.workdir.run_summary import gpus

from absl import flags

FOLDER = pathlib.Path(__file__).parent / "results"
IDLE = 0.3  # A machine with fewer running threads per core than this counts as idle.
_PACKAGES = ("tensorflow", "keras", "torch", "jax")

FLAGS = flags.FLAGS
flags.DEFINE_string("record", None, "Also write the tables to benchmarks/results/NAME.json.")

Cell = str | float | None


def _running() -> float:
  """Returns how many other threads run on this machine now, the mean of a few looks."""
  found = []
  with contextlib.suppress(OSError):  # No Linux.
    for _ in range(10):
      running = pathlib.Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
      found.append(int(running) - 1)  # Except this one.
      time.sleep(0.02)
  return statistics.mean(found) if found else 0.0


_others = _running()  # Before the benchmark does anything.
_tables: list["Table"] = []  # All tables of this process.


class Table:
  """A table that is printed row by row.

  Args:
    title: one line about what the table shows.
    columns: the format of each column of numbers, such as ".1f", by name.
    label: the name of the first column, which has the row names.
  """

  def __init__(self, title: str, columns: Mapping[str, str], label: str = ""):
    self.title, self.label, self.columns = title, label, dict(columns)
    self.rows: list[tuple[str, list[Cell]]] = []
    self._widths = [max(len(name), 9) + 2 for name in self.columns]
    _tables.append(self)
    if len(_tables) == 1:
      print(said_of(facts()))
    print(f"\n{title}")
    self._print(label, list(self.columns))

  def add(self, name: str, *cells: Cell) -> None:
    """Adds a row. Text cells are printed as they are; None is an empty cell."""
    assert len(cells) == len(self.columns)
    self.rows.append((name, list(cells)))
    self._print(name, self.formatted(cells))
    if FLAGS.record:
      _write()

  def formatted(self, cells: tuple[Cell, ...]) -> list[str]:
    """Returns the cells of a row as text."""
    return [formatted(cell, each) for cell, each in zip(cells, self.columns.values(), strict=True)]

  def _print(self, name: str, cells: list[str]) -> None:
    print(f"{name:34}" + "".join(f"  {cell:>{width - 2}}" for cell, width in zip(
        cells, self._widths, strict=True)), flush=True)


def formatted(cell: Cell, how: str) -> str:
  """Returns a cell as text, with numbers in the format `how`."""
  return "" if cell is None else cell if isinstance(cell, str) else format(cell, how)


@functools.cache
def facts() -> dict[str, Any]:
  """Returns what a reader needs to judge the numbers, except the numbers, as of the first call."""
  versions = {name: importlib.metadata.version(name)
              for name in _PACKAGES if importlib.util.find_spec(name)}
  cores = os.cpu_count() or 1
  module = sys.modules["__main__"].__spec__
  return {"command": " ".join(["python -m", module.name if module else sys.argv[0],
                               *(word for word in sys.argv[1:]
                                 if not word.startswith("--record"))]),
          "commit": _output_of("git", "rev-parse", "--short=12", "HEAD"),
          "date": datetime.date.today().isoformat(),
          "machine": ", ".join([*_visible_gpus(), f"{cores} cores of {_cpu_model()}"]),
          "idle": _others < IDLE * cores,
          "versions": {"python": platform.python_version(), **versions}}


def said_of(them: Mapping[str, Any]) -> str:
  """Formats the facts in one line."""
  versions = ", ".join(f"{name} {version}" for name, version in them["versions"].items())
  return f"{them['machine']}{'' if them['idle'] else ', which did other work too'}; {versions}"


def read(name: str) -> dict[str, Any]:
  """Reads a record, with its facts and `tables`."""
  return json.loads((FOLDER / f"{name}.json").read_text())


def _write() -> None:
  FOLDER.mkdir(exist_ok=True)
  tables = [{"title": each.title, "label": each.label, "columns": each.columns, "rows": each.rows}
            for each in _tables]
  atomic.write_whole(FOLDER / f"{FLAGS.record}.json",
                     json.dumps({**facts(), "tables": tables}, indent=1) + "\n")


def _output_of(*words: str) -> str:
  return subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()


def _visible_gpus() -> list[str]:
  return gpus() if os.environ.get("CUDA_VISIBLE_DEVICES") != "-1" else []


def _cpu_model() -> str:
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
      return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.processor() or platform.machine()
