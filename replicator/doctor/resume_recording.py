"""The recording that a process of `replicator doctor --check_resume` makes while training.

The process trains normally in a workdir, and exits after a given step as if it were killed there.
The recording shows why a resumed run differs: digests of the batches, and the parts of the step
with state that is not in checkpoints.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import pathlib
import pickle
import random as python_random
import types
from collections.abc import Callable, Sequence
from typing import Any

from replicator.app import devices
from replicator.doctor.experiment import configure
from replicator.errors import UsageError
from replicator.step import variables
from replicator.step.hooks import Hook
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.checkpoints.retention import Checkpoints
from replicator.training.checkpoints.store import steps_of
from replicator.training.checks.inspection import Evidence
from replicator.training.inputs.inputs import ExampleSource
from replicator.training.prepared import Enough
from replicator.training.run import Run

import keras
import numpy as np
import tensorflow as tf
import tree

CALLBACKS = "the callback "  # The prefix of the paths of callbacks' values.
_MOST = 10_000       # The most Python values to include.
_LARGEST = 2 ** 20   # The most bytes of an array that may be state; a larger one is data.


@dataclasses.dataclass
class ResumeRecording:
  """The recording of one process and its steps."""

  evidence: Evidence
  is_chief: bool = True
  has_source: bool = False  # Whether its inputs are an `ExampleSource`.
  batches: dict[int, str] = dataclasses.field(default_factory=dict)  # Digests, by step.
  changed: list[str] = dataclasses.field(default_factory=list)  # Paths of Python values.
  # Digests of all Python values, including those of callbacks, by step and path.
  python: dict[int, dict[str, str]] = dataclasses.field(default_factory=dict)


def record(main: Callable[[str], None], files: Sequence[str], params: Sequence[str], workdir: str,
           until: int, steps: int) -> ResumeRecording:
  """Trains an experiment of `steps` steps until step `until` is saved in `workdir`.

  Logs and saves every step. Raises a UsageError if the experiment does not save step `until`.
  Errors of the experiment propagate.
  """
  configure(files, params, steps, "train.steps_per_call = 1")
  recorder = _ResumeRecorder(until, steps)
  with installed([recorder], is_check=True), contextlib.suppress(Enough):
    devices.call(main, workdir)
    if until not in recorder.batches:
      raise UsageError(f"the experiment ended before step {until}; one of its callbacks stops it, "
                       "or it does not call replicator.train")
  saved = steps_of(pathlib.Path(workdir, "checkpoints"))
  if recorder.recording.is_chief and until not in saved:  # Other workers may get here earlier.
    raise UsageError(f"step {until} was not saved, because its numbers are not finite")
  return recorder.recording


class _ResumeRecorder(Callback, Hook):
  """A recorder that stops the run when its last step is saved."""

  every = 1
  on_all_workers = True
  recording: ResumeRecording

  def __init__(self, until: int, steps: int):
    self._until, self._steps = until, steps
    self._python: dict[str, str] = {}
    self.batches: dict[int, str] = {}  # The same as in the recording.
    self.hooks = [self]

  def begin(self, run: Run) -> None:
    self._run = run
    run.schedule = dataclasses.replace(
        run.schedule, steps=max(run.schedule.steps, self._steps), steps_per_call=1, log_every=1,
        eval_every=0, checkpoint_every=1)
    run.retention = Checkpoints(keep_last=self._steps, keep_best=None)
    self.recording = ResumeRecording(Evidence(run.module), run.is_chief,
                                     isinstance(run.inputs, ExampleSource), self.batches)

  def ended(self, batch: tuple, outputs: Any) -> dict[str, tf.Tensor]:
    self.recording.evidence.look_at_graph(tf.compat.v1.get_default_graph())
    return {}

  def after_steps(self, run: Run) -> None:
    if run.step > self._until:
      run.saver.wait()
      raise Enough  # Before this step is saved.
    self.batches[run.step] = _digest_of(list(map(np.asarray, tree.flatten(run.batch))))
    # Every process traces its first call, so changes that tracing makes in Python do not count.
    before, self._python = self._python, self._python_state()
    self.recording.python[run.step] = self._python
    self.recording.changed += [path for path, digest in before.items()
                               if self._python.get(path, digest) != digest
                               and path not in self.recording.changed]

  def _python_state(self) -> dict[str, str]:
    # The step uses these as globals, not through references.
    legacy = {"np.random": np.random.get_state(), "random": python_random.getstate()}
    run = self._run
    callbacks = {f"{CALLBACKS}{type(each).__name__}": each for each in run.schedule.callbacks
                 if each is not self}
    of_callbacks = {path: digest for name, each in callbacks.items()
                    for path, digest in python_state(name, vars(each)).items()}
    return {**python_state("", run.module), **python_state("inputs", run.inputs),
            **python_state("before_call", run.before_call), **of_callbacks,
            **{f"the generator of {name}": _digest_of(value) for name, value in legacy.items()}}


_VALUES = (bool, int, float, complex, str, bytes, np.ndarray, np.generic, np.random.Generator,
           np.random.RandomState, python_random.Random, itertools.count, set, frozenset)
_NONE_OF_PYTHON = (tf.Variable, tf.Tensor, keras.Variable, keras.optimizers.Optimizer,
                   tf.data.Dataset, types.ModuleType, type)


def python_state(name: str, root: Any) -> dict[str, str]:
  """Returns digests of the Python values in an object, by path, without those of TensorFlow."""
  found: dict[str, str] = {}
  seen: set[int] = set()
  waiting = collections.deque([(name, root)])
  while waiting and len(seen) < _MOST:
    path, value = waiting.popleft()
    if isinstance(value, _VALUES):
      if getattr(value, "nbytes", 0) <= _LARGEST:
        found[path] = _digest_of(value)
    elif id(value) not in seen and not isinstance(value, _NONE_OF_PYTHON):
      seen.add(id(value))
      if isinstance(value, list | dict | collections.deque):
        found[f"{path}.length"] = str(len(value))
      waiting.extend((f"{path}.{child_name}" if path else str(child_name), child)
                     for child_name, child in _held_by(value).items())
  return found


def _held_by(value: Any) -> dict:
  if isinstance(value, types.GeneratorType):
    frame = value.gi_frame
    return {"position": frame.f_lasti, **frame.f_locals} if frame else {"position": -1}
  if isinstance(value, collections.deque):
    return dict(enumerate(value))
  children = variables.children_of(value)
  if isinstance(value, keras.layers.Layer):  # Without Keras' private attributes.
    return {name: child for name, child in (children or {}).items() if not name.startswith("_")}
  if children is not None:
    return dict(children)
  if type(value).__module__.partition(".")[0] in ("tensorflow", "keras", "numpy"):
    return {}
  return dict(getattr(value, "__dict__", {}))


def _digest_of(value: Any) -> str:
  with contextlib.suppress(Exception):
    return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
  return repr(value)
