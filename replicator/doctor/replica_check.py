"""The variants of a training that `replicator.doctor` compares, and the row it tells of each."""

import dataclasses
import functools
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence

import gin

from replicator.app import config
from replicator.doctor import diagnosis, replica_recording
from replicator.errors import UsageError, first_line, in_one_line
from replicator.strategies import strategy

AGREES, DIFFERS, FAILED, SKIPPED = "agrees", "DIFFERS", "FAILED", "--"


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of the table.

  Attributes:
    variant: what was compared with one replica.
    verdict: one of the four above.
    detail: the largest difference, or why there is none.
    notes: more lines: where a variant differs first, and the likely cause.
  """

  variant: str
  verdict: str
  detail: str
  notes: tuple[str, ...] = ()

  def __str__(self) -> str:
    lines = [f"  {self.variant:16}  {self.verdict:8}  {self.detail}"]
    for note in self.notes:
      lines += textwrap.wrap(note, 100, initial_indent=" " * 4, subsequent_indent=" " * 6,
                             break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


class Examination:
  """Records an experiment under its variants, and compares them.

  Args:
    main: of the experiment.
    files: gin files.
    params: gin bindings.
    steps: how many are compared.
    precision: 'float64' or 'float32'.
  """

  reference: replica_recording.Recording

  def __init__(self, main: Callable[[str], None], files: Sequence[str], params: Sequence[str],
               steps: int = 5, precision: str = "float64"):
    self._main = main
    self._files = files
    self._params = list(params)
    self._steps = steps
    self._precision = precision
    self._is_deterministic: bool | None = None
    self.tolerance = diagnosis.TOLERANCES[precision]

  def prepare(self) -> None:
    """Splits the CPU, and records one replica."""
    self._devices = self._bound("Replicator.devices_per_replica", 1)
    strategy.make("mirrored", 4 * self._devices, None, self._devices)
    self.reference = self._record(1)

  def record_process(self, path: str) -> None:
    """Records this process's part in a cluster; the chief writes the file."""
    found = self._record_with(["Replicator.strategy = 'multi_worker_mirrored'",
                               "Replicator.logical_cpus = None"])
    if found.chief:
      found.save(path)

  def _bound(self, name: str, otherwise: int) -> int:
    """What the user's configuration binds to a parameter."""
    config.parse(self._files, self._params)
    try:
      return gin.query_parameter(name)
    except ValueError:
      return otherwise

  def _record(self, replicas: int, microbatches: int = 1) -> replica_recording.Recording:
    name = "one_device" if replicas == 1 else "mirrored"
    return self._record_with(
        [f"Replicator.strategy = '{name}'",
         f"Replicator.logical_cpus = {replicas * self._devices}"], microbatches)

  def _record_with(self, bindings: list[str], microbatches: int = 1) -> replica_recording.Recording:
    steps = self._bound("train.steps", self._steps)
    config.parse(self._files, [
        *self._params, *bindings, "Replicator.jit_compile = False", f"train.steps = {steps}",
        "train.steps_per_call = 1", f"train.precision = '{self._precision}'",
        f"microbatch.n = {microbatches}"])
    return replica_recording.record(self._main, self._steps, self._precision)

  def _quantities(self, replicas: int, microbatches: int = 1) -> diagnosis.Quantities:
    return self._record(replicas, microbatches).quantities

  def rows(self, words: Sequence[str] | None = None) -> Iterator[Row]:
    """The table, a row when it is known; `words` start the 2 processes, None leaves them out."""
    for replicas in (2, 4):
      yield self._row(f"{replicas} replicas", replicas,
                      functools.partial(self._quantities, replicas))
    yield self._microbatch_row()
    if words is not None and self._devices > 1:
      yield Row("2 processes", SKIPPED, "Replicator.devices_per_replica works in one process")
    elif words is not None:
      yield self._row("2 processes", 2, lambda: _record_processes(words))

  def _microbatch_row(self) -> Row:
    name = "2 micro-batches"
    if not self.reference.evidence.microbatched:
      return Row(name, SKIPPED, "the step does not call replicator.microbatch")
    if not self.reference.evidence.has_global_batch_norm:
      return self._row(name, 2, functools.partial(self._quantities, 1, 2),
                       microbatches=True)
    # Its statistics are those of a micro-batch: that is another training than the full batch's.
    try:
      in_parts = self._record(1, 2)
    except Exception as error:
      return self._failure(name, error)
    row = self._row(name, 2, functools.partial(self._quantities, 2, 2), in_parts)
    note = ("compared on 2 replicas with 2 micro-batches on 1: GlobalBatchNorm takes its "
            "statistics by micro-batch")
    return dataclasses.replace(row, notes=(note, *row.notes))

  def _row(self, name: str, parts: int, record: Callable[[], diagnosis.Quantities],
           reference: replica_recording.Recording | None = None, microbatches: bool = False) -> Row:
    reference = reference or self.reference
    try:
      other = record()
    except Exception as error:
      return self._failure(name, error)
    largest, first = diagnosis.compare(reference.quantities, other, self.tolerance)
    step, kind, _ = largest.key
    detail = f"{largest.relative:.1e}  (a {kind} at step {step})"
    if first is None:
      return Row(name, AGREES, detail)
    case = diagnosis.Case(reference, other, first, parts, microbatches, self.tolerance)
    cause = case.cause() if first.key[0] == 0 or self._deterministic() else (
        "the step is not deterministic: two runs on one replica differ as well; draw random "
        "numbers with replicator.random, and weights with Keras initializers")
    return Row(name, DIFFERS, detail, (f"first: {case.place()}", f"likely cause: {cause}"))

  def _failure(self, name: str, error: Exception) -> Row:
    if "does not divide" in str(error):
      return Row(name, SKIPPED, first_line(error))
    if isinstance(error, UsageError):
      return Row(name, FAILED, first_line(error))
    reason = in_one_line(error)
    draws = [draw for draw in self.reference.evidence.draws
             if reason.startswith(draw.rpartition(" at ")[2] + ": ")]
    return Row(name, FAILED, reason, tuple(
        f"likely cause: {draw}; draw with replicator.random" for draw in draws))

  def _deterministic(self) -> bool:
    """Whether one replica agrees with itself; found out when something differs."""
    if self._is_deterministic is None:
      again = self._record(1).quantities
      first = diagnosis.compare(self.reference.quantities, again, self.tolerance)[1]
      self._is_deterministic = first is None
    return self._is_deterministic


def _record_processes(words: Sequence[str]) -> diagnosis.Quantities:
  with tempfile.TemporaryDirectory(prefix="replicator-") as folder:
    path = str(pathlib.Path(folder) / "recording.npz")
    done = subprocess.run(
        [sys.executable, "-m", "replicator.launch", "--workers=2", "--",
         sys.executable, "-m", "replicator.doctor", *words, f"--record={path}"],
        capture_output=True, text=True)
    if done.returncode:
      raise UsageError(error_in(done.stdout + done.stderr))
    return replica_recording.load(path)


def error_in(output: str) -> str:
  """The first error that a process printed, else its first line."""
  lines = output.splitlines()
  errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
  return (errors or lines or ["no output"])[0]
