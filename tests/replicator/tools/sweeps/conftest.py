"""A sweep of a tiny experiment in a folder of its own, and rows of a sweep that has run."""

import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import threading

from replicator.tools.sweeps import __main__ as command
from replicator.tools.sweeps import results, trials
from replicator.tools.sweeps import sweep as sweep_module
from replicator.tools.sweeps.results import TrialResult
from replicator.tools.sweeps.search import JOURNAL
from replicator.tools.sweeps.sweep_file import SweepFile
from replicator.tools.sweeps.trials import Record
from tests.programs.processes import ROOT, wait_until

import optuna
import pytest

TINY = pathlib.Path(__file__).with_name("tiny_experiment.py")
# A process in the background would ignore Ctrl-C, and so would those that it starts.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from replicator.tools.sweeps import __main__ as command
from replicator.tools.sweeps import sweep
sweep.POLL_SECONDS = 0.05
status = command.main()
assert "tensorflow" not in sys.modules, "the sweep has loaded TensorFlow"
sys.exit(status)
"""


def studies(folder: pathlib.Path) -> list[optuna.Study]:
  """The studies in the journal of a sweep's folder."""
  backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
  storage = optuna.storages.JournalStorage(backend)
  return [optuna.load_study(study_name=name, storage=storage)
          for name in optuna.get_all_study_names(storage)]


class SweepCommand:
  """Writes a sweep file and runs it, in this process or in one of its own."""

  def __init__(self, folder: pathlib.Path, capsys=None):
    self.file, self.folder = folder / "tiny.gin", folder / "sweep"
    self.hold = folder / "hold"
    self._capsys = capsys
    self.out = self.err = ""
    self.write()

  def write(self, **settings):
    """Writes the sweep file: two learning rates, two seeds, and `settings`; None omits one."""
    merged = {"experiment": str(TINY), "metric": "eval/loss", "grid": {"lr": [0.1, 0.3]},
              "seeds": [1, 2], **settings}
    self.file.write_text("".join(f"sweep.{name} = {value!r}\n"
                                 for name, value in merged.items() if value is not None))
    return self

  def write_held(self, **settings):
    """Writes the file of a sweep whose trials wait before their third step while `hold` exists."""
    self.hold.touch()
    return self.write(**{"params": [f"hold = '{self.hold}'"], **settings})

  def arguments(self, *flags: str) -> list[str]:
    return [f"--sweep_file={self.file}", f"--workdir={self.folder}", "--jobs=2", *flags]

  def run(self, *flags: str) -> int:
    status = command.main(self.arguments(*flags))
    self.out, self.err = self._capsys.readouterr()
    return status

  def start_held(self, *flags: str) -> subprocess.Popen:
    """Starts the sweep in a process group of its own, and returns when two of its trials wait.

    The process fails if it loads TensorFlow.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *self.arguments(*flags)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    wait_until(lambda: self.is_held() or process.poll() is not None)
    return process

  def run_stopped(self, when, number: int, *flags: str) -> int:
    """Runs the sweep, sends it a signal once `when()` is true, and returns its exit status."""
    def stop():
      wait_until(when)
      os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    status = self.run(*flags)
    thread.join()
    return status

  def steps(self, name: str) -> list[int]:
    """The steps that a trial has logged."""
    path = self.folder / "trials" / name / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]

  def held(self) -> list[pathlib.Path]:
    """The folders of the trials that wait for the file `hold` to go."""
    return [path.parents[1] for path in self.folder.glob("trials/*/checkpoints/step-00000002")
            if not path.with_name("step-00000003").exists()]

  def is_held(self) -> bool:
    """Whether two trials wait."""
    return len(self.held()) == 2

  def study(self) -> optuna.Study:
    """The only study in the sweep's journal."""
    (study,) = studies(self.folder)
    return study

  def statuses(self) -> list[str]:
    """The statuses of all recorded trials, sorted."""
    return sorted(trials.read_record(path.parent).status
                  for path in self.folder.glob("trials/*/trial.json"))

  def logs(self) -> dict[str, list[int]]:
    """The steps from which each trial has started or resumed."""
    return {path.parent.name: [int(step) for step in re.findall(r"from step (\d+)",
                                                                path.read_text())]
            for path in sorted(self.folder.glob("trials/*/output.log"))}


@pytest.fixture
def sweep(tmp_path, capsys, without_curves, monkeypatch):
  monkeypatch.setattr(sweep_module, "POLL_SECONDS", 0.05)
  return SweepCommand(tmp_path, capsys)


@pytest.fixture
def page_file():
  """The sweep file of `ranked`."""
  return SweepFile("x.py", "eval/loss",
                   grid={"a.lr": [0.1, 0.3], "net": ["<small>", "big"]}, seeds=[1, 2])


@pytest.fixture
def ranked(page_file):
  """Four settings with two seeds, and an old trial; one failed, one has no finite value."""
  records = [Record(f"t{order}", {"a.lr": lr, "net": net, "train.seed": seed}, "done", 0, 61.0,
                    order=order)
             for order, (lr, net, seed) in enumerate(
                 itertools.product((0.1, 0.3), ("<small>", "big"), (1, 2)))]
  records[0].status, records[0].message = "failed", "error: <it> broke"
  records.append(Record("old", {"a.lr": 9.0}, "done", 0, 1.0, order=9))
  found = [TrialResult(record, page_file, is_current=record.id != "old") for record in records]
  for result in found[1:-1]:
    lr, seed = result.record.bindings["a.lr"], result.record.bindings["train.seed"]
    result.series, result.step = [(0, 10 * lr), (10, 1.0 + lr + 0.01 * seed), (20, 2.0)], 20
  found[7].series = [(0, math.nan)]
  return results.ranked(found)
