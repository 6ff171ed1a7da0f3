"""The logs of a run: `metrics.jsonl`, `samples/`, TensorBoard's events, and `log.txt`."""

import contextlib
import datetime
import io
import json
import math
import pathlib
import time
from collections.abc import Iterator, Mapping

from replicator import atomic
from replicator.internals.tensorflow_internals import handle
from replicator.training.workdir import reader
from replicator.training.workdir.writer import Sink

import numpy as np
import tensorflow as tf

_MAIN = "samples"  # Images of this name go directly into `samples/`.


class MetricsFile(Sink):
  """`metrics.jsonl`: one JSON object for each step with scalars."""

  def __init__(self, workdir: pathlib.Path):
    self._path = workdir / "metrics.jsonl"

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Appends a line."""
    row = {"step": step, **{name: reader.as_json(value) for name, value in values.items()}}
    with self._path.open("a") as file:
      file.write(json.dumps(row, allow_nan=False) + "\n")

  def sync(self) -> None:
    """Forces the lines to the disk; raises an OSError if that fails."""
    with contextlib.suppress(FileNotFoundError):  # Perhaps nothing is logged yet.
      atomic.to_disk(self._path)

  def take_back(self, step: int) -> None:
    """Drops the lines after `step`."""
    if self._path.exists():
      kept = [line for line in self._path.read_text().splitlines()  # A crash may truncate the last.
              if reader.object_in(line).get("step", math.inf) <= step]
      atomic.write_whole(self._path, "".join(line + "\n" for line in kept))


class LogFile:
  """`log.txt`: the output of all starts of a run. Ignores a full disk, which others report."""

  def __init__(self, workdir: pathlib.Path):
    self._path = workdir / "log.txt"

  def write(self, line: str) -> None:
    """Appends a line."""
    with (contextlib.suppress(OSError),
          self._path.open("a", encoding="utf-8", errors="backslashreplace") as file):
      file.write(f"{line}\n")

  def begin(self, command: str) -> None:
    """Appends the current time and the command."""
    now = datetime.datetime.now(datetime.timezone.utc)
    self.write(f"--- {now:%Y-%m-%d %H:%M:%S} UTC: {command}")


class SampleFiles(Sink):
  """`samples/step-NNNNNNNN.png` and `samples/NAME/step-NNNNNNNN.png`."""

  def __init__(self, workdir: pathlib.Path):
    self._folder = workdir / "samples"

  def images(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Writes one file per image."""
    from PIL import Image
    for name, pixels in values.items():
      file = io.BytesIO()
      Image.fromarray(pixels).save(file, format="png")
      folder = self._folder if name == _MAIN else self._folder / name
      folder.mkdir(parents=True, exist_ok=True)
      atomic.write_whole(folder / f"step-{step:08d}.png", file.getvalue())

  def take_back(self, step: int) -> None:
    """Removes the images after `step`."""
    for image in self._folder.rglob("step-*.png"):
      if (of_image := reader.step_of(image)) is not None and of_image > step:
        image.unlink()


class TensorBoard(Sink):
  """TensorBoard's event files, which contain everything."""

  def __init__(self, workdir: pathlib.Path):
    self._events = tf.summary.create_file_writer(str(workdir))

  @contextlib.contextmanager
  def as_default(self, step: int | tf.Tensor) -> Iterator[None]:
    """Makes `tf.summary` write here while the body runs; `step` is the default step."""
    # Turns off TensorFlow's flush at the end, which a compiled step would do at every step.
    flush, self._events.flush = self._events.flush, lambda: None
    try:
      with self._events.as_default(step):
        yield
    finally:
      self._events.flush = flush

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Writes the scalars; names without a slash go to the group `train`."""
    with self._events.as_default(step), np.errstate(over="ignore"):
      for name, value in values.items():
        if name != "seconds":  # TensorBoard stores float32, and rejects larger numbers.
          tf.summary.scalar(name if "/" in name else f"train/{name}", np.float32(value))
    self._events.flush()

  def images(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Writes the images."""
    with self._events.as_default(step):
      for name, pixels in values.items():
        tf.summary.image(name, pixels[np.newaxis])

  def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Writes the histograms."""
    with self._events.as_default(step):
      for name, numbers in values.items():
        tf.summary.histogram(name, numbers)

  def text(self, step: int, values: Mapping[str, str]) -> None:
    """Writes the texts."""
    with self._events.as_default(step):
      for name, text in values.items():
        tf.summary.text(name, text)

  def hyperparameters(self, values: Mapping[str, bool | float | str]) -> None:
    """Writes the values for the HParams tab, which groups runs with equal values."""
    from tensorboard.plugins.hparams import summary_v2
    with self._events.as_default(0):
      tf.summary.experimental.write_raw_pb(
          summary_v2.hparams_pb(dict(values)).SerializeToString(), step=0)

  def take_back(self, step: int) -> None:
    """Makes TensorBoard ignore the events written so far for steps after `step`."""
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(step=step + 1, wall_time=time.time(), session_log=start)
    tf.raw_ops.ImportEvent(writer=handle(self._events), event=event.SerializeToString())
