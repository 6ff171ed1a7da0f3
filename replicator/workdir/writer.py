"""Writes the workdir of a run: metrics, pictures, configuration, provenance and the report."""

import contextlib
import datetime
import io
import json
import math
import pathlib
import time

from replicator.console import quiet

quiet.import_tensorflow()

import numpy as np
import tensorflow as tf

from replicator import atomic
from replicator.configuration import operative, statements
from replicator.console import kernel
from replicator.internals.tensorflow_internals import handle
from replicator.workdir import provenance, reader
from replicator.workdir.report import show_report, write_report

_REPORTS = 0.01  # Share of the run's time that reports may use.


class WorkdirWriter:
  """Writes the files of a workdir, which it creates if missing; only one process of a run does.

  `facts` are for `run.json`, besides the command, the code, the versions and the machine. The run
  resumes from `first_step`: everything that was logged after it is removed, so that the files read
  as those of an uninterrupted run.
  """

  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int = 0):
    self.workdir = workdir
    (workdir / "samples").mkdir(parents=True, exist_ok=True)
    self._resumed = first_step > 0
    self._metrics = workdir / "metrics.jsonl"
    self._next_report = 0.0  # The earliest time.
    self._place = kernel.Place() if kernel.is_kernel() else None
    self._events = tf.summary.create_file_writer(str(workdir))
    self.take_back(first_step if first_step else -1)  # Step 0 is evaluated again.
    self.facts = self._all_facts(facts, first_step)  # The content of `run.json`.
    self._write_facts()

  def metrics(self, step: int, seconds: float, values: dict[str, float]) -> None:
    """Appends one line to `metrics.jsonl` and the same to TensorBoard."""
    row = {"step": step, "seconds": round(seconds, 3),
           **{name: reader.as_json(value) for name, value in values.items()}}
    line = json.dumps(row, allow_nan=False)
    with self._metrics.open("a") as file:
      file.write(line + "\n")
    with self._events.as_default(step), np.errstate(over="ignore"):
      for name, value in values.items():  # TensorBoard groups by what stands before the slash.
        # It holds float32, and refuses a larger number.
        tf.summary.scalar(name if "/" in name else f"train/{name}", np.float32(value))
    self._events.flush()

  def sync(self) -> None:
    """Forces `metrics.jsonl` to the disk; raises an OSError if that fails."""
    with contextlib.suppress(FileNotFoundError):  # Nothing may be logged yet.
      atomic.to_disk(self._metrics)

  def picture(self, step: int, pixels: np.ndarray) -> None:
    """Writes `samples/step-NNNNNNNN.png` from uint8 `[h, w, 3]`, and the same to TensorBoard."""
    from PIL import Image
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="png")
    atomic.write_whole(self.workdir / "samples" / f"step-{step:08d}.png", file.getvalue())
    with self._events.as_default(step):
      tf.summary.image("samples", pixels[np.newaxis])

  def note(self, name: str, fact: str | list) -> bool:
    """Adds a fact to `run.json`; returns whether the fact is new."""
    if self.facts.get(name) == fact:
      return False
    self.facts[name] = fact
    self._write_facts()
    return True

  def config(self, evaluated: bool = True) -> list[str]:
    """Writes `config.gin` after the first step; see `operative.after_first_step`.

    Returns lines for the user, also on code that a resumed run has changed.
    """
    found = {each.key: each for each in statements.last_read() if not each.is_record}
    # The name, the value and the place of each statement that set a value, the last one of each.
    self.note("settings", [[each.name, repr(each.value), each.where] for each in found.values()])
    lines = operative.after_first_step(self.workdir / "config.gin", self._resumed, evaluated)
    lines += self._code_changes() if self._resumed else []
    with self._events.as_default(0):
      text = (self.workdir / "config.gin").read_text()
      tf.summary.text("config", "".join(f"    {line}\n" for line in text.splitlines()))
    return lines

  def _code_changes(self) -> list[str]:
    """Lines on other code than that of the run so far, which may compute other numbers."""
    before, now = self.facts["resumed"][-1]["before"], self.facts
    pairs = {name: (before[name], now[name]) for name in ("git_commit", "replicator_commit")
             if name in before}
    for name, version in before.get("versions", {}).items():
      pairs[f"version of {name}"] = (version, now["versions"].get(name))
    return [f"changed: {name} = {new}, was {old}" for name, (old, new) in pairs.items()
            if old != new]

  def report(self, ended: str | None = None) -> str:
    """Writes `report.html` of a run that `ended` so or, unless the last was too recent, goes on.

    In a notebook its main curves appear under the cell, too. A report that fails never ends the
    run: the result is a line about that, or empty.
    """
    begun = time.monotonic()
    if ended is None and begun < self._next_report:
      return ""
    problem = ""
    try:
      if ended is not None:
        self.note("ended", ended)
      write_report(self.workdir)
      if self._place:
        show_report(self.workdir, self._place)
    except Exception as error:
      problem = f"warning: the report cannot be written ({type(error).__name__}: {error})"
    now = time.monotonic()
    self._next_report = now + (now - begun) / _REPORTS
    return problem

  def take_back(self, first_step: int) -> None:
    """Drops the metrics, pictures and events after the step where the run resumes."""
    for picture in (self.workdir / "samples").glob("step-*.png"):
      number = picture.stem.removeprefix("step-")
      if number.isdecimal() and int(number) > first_step:  # Others are the user's.
        picture.unlink()
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(step=first_step + 1, wall_time=time.time(), session_log=start)
    # After this event, TensorBoard ignores earlier events of this step and of later steps.
    tf.raw_ops.ImportEvent(writer=handle(self._events), event=event.SerializeToString())
    if not self._metrics.exists():
      return
    kept = [line for line in self._metrics.read_text().splitlines()  # A crash may tear the last.
            if reader.object_in(line).get("step", math.inf) <= first_step]
    atomic.write_whole(self._metrics, "".join(line + "\n" for line in kept))

  def _all_facts(self, facts: dict, first_step: int) -> dict:
    """The facts as they are now; those that a resumed run changes stay under "resumed".

    A run that has no step left keeps its facts, as it keeps its `config.gin`.
    """
    earlier = reader.read_facts(self.workdir)
    earlier.pop("ended", None)
    resumed = earlier.pop("resumed", [])
    if earlier and first_step >= facts.get("steps", math.inf):  # Nothing will change.
      return {**earlier, "resumed": resumed}
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    now = {**provenance.of_this_process(), **facts}
    diff = provenance.code_of_program(now["program_file"]).diff
    now["git_diff"] = self._keep(diff, len(resumed) + 1 if first_step else 0) or now["git_diff"]
    now["machine"]["devices"] = [d.name for d in tf.config.list_logical_devices()]
    if not earlier:
      again = [{"step": first_step, "started": started, "before": {}}] if first_step else []
      return {"started": started, **now, "resumed": again}
    before = {name: earlier[name] for name in now if earlier.get(name, now[name]) != now[name]}
    resumed = [*resumed, {"step": first_step, "started": started, "before": before}]
    notes = earlier if first_step else {"started": started}
    return {**notes, **now, "resumed": resumed}

  def _keep(self, diff: bytes, resumed: int) -> str | None:
    """Writes the uncommitted changes of the code, if any; returns the name of the file.

    The `resumed`-th start keeps other changes of an earlier one.
    """
    if not diff:
      return None
    path = self.workdir / provenance.DIFF
    if resumed and path.exists() and path.read_bytes() != diff:
      path = path.with_stem(f"{path.stem}-{resumed}")
    atomic.write_whole(path, diff)
    return path.name

  def _write_facts(self) -> None:
    atomic.write_whole(self.workdir / "run.json", json.dumps(self.facts, indent=2) + "\n")
