"""Measures throughput and memory: examples and environment steps per second, and MiB."""

import os
import pathlib
import resource
import sys
from collections.abc import Mapping

from replicator.training.run import Run

import tensorflow as tf

_STATM = pathlib.Path("/proc/self/statm")
_MIB = 2 ** 20


class Throughput:
  """The throughput between log points, without the first call, which compiles the step."""

  def __init__(self, run: Run):
    self._run = run
    self._step, self._seconds = run.step, 0.0  # At the last log point.
    self._environment_steps: float | None = None
    self._has_begun = False

  def begin(self) -> None:
    """Starts measuring, after the first call."""
    self._has_begun = True
    self._step, self._seconds = self._run.step, self._run.training

  def scalars(self, means: Mapping[str, float]) -> dict[str, float]:
    """Returns the scalars of a log point, whose `means` may have a counter `environment_steps`."""
    run = self._run
    steps, seconds = run.step - self._step, run.training - self._seconds
    self._step, self._seconds = run.step, run.training
    found = {}
    if self._has_begun and steps > 0 and seconds > 0:  # Not after a rollback.
      found["system/examples_per_second"] = _short(
          steps * run.input_context.examples / seconds)
      now, before = means.get("environment_steps"), self._environment_steps
      if now is not None and before is not None:
        found["system/environment_steps_per_second"] = _short((now - before) / seconds)
    self._environment_steps = means.get("environment_steps")
    return {**found, **_memory()}


def _memory() -> dict[str, float]:
  """Returns this process's memory, and TensorFlow's highest peak on any of its GPUs, in MiB."""
  found = {"system/memory_mib": _short(_resident() / _MIB)}
  gpus = [device.name.rpartition("device:")[2] for device in tf.config.list_logical_devices("GPU")]
  if gpus:
    peaks = [tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in gpus]
    found["system/peak_gpu_memory_mib"] = _short(max(peaks) / _MIB)
  return found


def _short(value: float) -> float:
  """Rounds to five significant digits; the clock is not more accurate."""
  return float(f"{value:.5g}")


def _resident() -> int:
  """Returns this process's main memory in bytes; its peak on systems without /proc."""
  if _STATM.exists():
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == "darwin" else 1024 * peak
