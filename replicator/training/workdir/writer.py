"""`Writer`: sends everything a run logs to the files of the workdir and to trackers."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from replicator.errors import UsageError

import numpy as np

EXAMPLES = {"scalars": "such as {'score': 0.5}", "images": "such as {'samples': pixels}",
            "histograms": "such as {'codes': codes}", "text": "such as {'note': 'a line'}"}
RESERVED = ("step", "seconds")  # Columns of each line.


class Sink:
  """A destination of a `Writer`; override what you need. `step` decreases only after `take_back`.
  """

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Gets the line of a step: "seconds", and all scalars of this step, by name."""

  def images(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Gets images, uint8 `[h, w, 3]`, by name."""

  def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Gets the values of each histogram, float64 `[n]`, by name."""

  def text(self, step: int, values: Mapping[str, str]) -> None:
    """Gets texts by name."""

  def take_back(self, step: int) -> None:
    """Drops what was written after `step`; the run continues from there and writes it again."""


class Writer:
  """The writer of a run's scalars, images, histograms and texts; callbacks use `run.writer`.

      run.writer.scalars(run.step, {"weight_norm": norm})

  TensorBoard and trackers get everything, `metrics.jsonl` the scalars, `samples/` and the report
  the images. All scalars of a step form one line, which is written after the callbacks return. On
  workers other than the chief, it checks its input but writes nothing.

  `seconds` returns the training time so far, which is a column of each line.
  """

  def __init__(self, sinks: Iterable[Sink] = (), seconds: Callable[[], float] = lambda: 0.0):
    self._sinks = list(sinks)
    self._seconds = seconds
    self._step = -1
    self._row: dict[str, float] = {}
    self._is_flushed = False  # Whether this step's line has been written.
    self._written: set[tuple[str, str]] = set()  # (kind, name) of this step.

  def add(self, sink: Sink) -> None:
    """Adds a sink, which gets everything written from now on."""
    self._sinks.append(sink)

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Adds numbers by name to the line of a step; a slash in a name groups the charts.

    Raises a UsageError if a value is not a single number, or the name is already used in this step.
    Like the other methods, also raises one if a later step was already written.
    """
    found = self._checked("scalars", step, values, checked_scalar)
    if found and self._is_flushed:
      raise UsageError(f"writer.scalars: the line of step {step} is already written; write its "
                       "scalars in after_steps or evaluated")
    self._row.update(found)

  def images(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Writes images by name: `[h, w]`, `[h, w, 1]` or `[h, w, 3]`, uint8 or floats from 0 to 1.

    The files are `samples/NAME/step-NNNNNNNN.png`; the name 'samples' has no folder of its own.
    Raises a UsageError if a value is not an image, or the name is already used in this step.
    """
    self._send("images", step, self._checked("images", step, values, checked_image))

  def histograms(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the values of arrays of any shape by name; skips values that are not finite.

    Raises a UsageError if a value is not a numeric array, or the name is already used in this step.
    """
    found = self._checked("histograms", step, values, checked_histogram)
    self._send("histograms", step, {name: x for name, x in found.items() if len(x)})

  def text(self, step: int, values: Mapping[str, str]) -> None:
    """Writes texts by name; raises a UsageError for a non-string, or a name used in this step."""
    self._send("text", step, self._checked("text", step, values, _checked_text))

  def line(self, step: int) -> dict[str, float]:
    """Returns the scalars of a step if it is the latest one; otherwise, an empty dict."""
    return dict(self._row) if step == self._step else {}

  def flush(self) -> None:
    """Writes the line of the current step, if it has unwritten scalars."""
    if self._row and not self._is_flushed:
      self._is_flushed = True
      self._send("scalars", self._step, {"seconds": round(self._seconds(), 3), **self._row})

  def take_back(self, step: int) -> None:
    """Drops what was written after `step`, because the run continues from there."""
    self._step, self._row, self._is_flushed, self._written = -1, {}, False, set()
    for sink in self._sinks:
      sink.take_back(step)

  def _checked(self, kind: str, step: int, values: Mapping[str, Any], check: Callable
               ) -> dict[str, Any]:
    where = f"writer.{kind}"
    if not isinstance(values, Mapping):
      raise UsageError(f"{where}: the values are a {type(values).__name__}; pass a dict, "
                       f"{EXAMPLES[kind]}")
    step = int(step)
    if step < self._step:
      raise UsageError(f"{where}: step {step} comes after step {self._step}, which is already "
                       "written; use run.step")
    if step > self._step:
      self.flush()
      self._step, self._row, self._is_flushed, self._written = step, {}, False, set()
    found = {name: check(where, name, value) for name, value in values.items()}
    for name in found:
      if (kind, name) in self._written:
        raise UsageError(f"{where}: '{name}' is written twice at step {step}; rename one of the "
                         "two")
      self._written.add((kind, name))
    return found

  def _send(self, kind: str, step: int, values: dict[str, Any]) -> None:
    if values:
      for sink in self._sinks:
        getattr(sink, kind)(int(step), values)


def _check_name(where: str, name: Any) -> None:
  if not isinstance(name, str) or not name:
    raise UsageError(f"{where}: the name {name!r} is a {type(name).__name__}; use a non-empty "
                     "string")


def checked_scalar(where: str, name: Any, value: Any) -> float:
  """Returns a scalar as a float; raises a UsageError that begins with `where` if it is not one."""
  if isinstance(name, str) and name not in RESERVED and not isinstance(value, str | bytes):
    with contextlib.suppress(TypeError, ValueError):
      if np.ndim(value) == 0:
        return float(value)
  other = f" other than {' and '.join(RESERVED)}" if name in RESERVED else ""
  raise UsageError(f"{where}: the scalar {name!r} is {_form_of(value)}; use a name{other} and "
                   "one number, such as 'score': float(tf.reduce_mean(scores))")


def checked_image(where: str, name: Any, value: Any) -> np.ndarray:
  """Returns an image as uint8 `[h, w, 3]`.

  Raises a UsageError if it is not an image, or if its floats are outside [0, 1].
  """
  _check_name(where, name)
  pixels = np.asarray(value)
  is_shaped = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3))
  if not (is_shaped and (pixels.dtype == np.uint8 or pixels.dtype.kind == "f")):
    raise UsageError(f"{where}: the image '{name}' is {_form_of(value)}; use uint8 [h, w, 3], with "
                     "values from 0 to 255, or floats from 0 to 1")
  if pixels.dtype != np.uint8:
    if pixels.size and not (pixels.min() >= 0.0 and pixels.max() <= 1.0):
      raise UsageError(f"{where}: the image '{name}' has values from {pixels.min():.4g} to "
                       f"{pixels.max():.4g}; scale floats to [0, 1], or use uint8")
    pixels = np.round(255.0 * pixels.astype(np.float64)).astype(np.uint8)
  pixels = pixels.reshape([*pixels.shape[:2], -1])
  return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def checked_histogram(where: str, name: Any, value: Any) -> np.ndarray:
  """Returns an array's finite values, float64 `[n]`; raises a UsageError if it is not numeric."""
  _check_name(where, name)
  array = np.asarray(value)
  if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
    raise UsageError(f"{where}: the histogram '{name}' is {_form_of(value)}; pass an array of "
                     "numbers")
  flat = array.astype(np.float64).ravel()
  return flat[np.isfinite(flat)]


def _checked_text(where: str, name: Any, value: Any) -> str:
  _check_name(where, name)
  if not isinstance(value, str):
    raise UsageError(f"{where}: the text '{name}' is {_form_of(value)}; pass a string")
  return value


def _form_of(value: Any) -> str:
  if hasattr(value, "dtype") and hasattr(value, "shape"):
    return f"{value.dtype.name} {list(value.shape)}"
  return f"a {type(value).__name__}"
