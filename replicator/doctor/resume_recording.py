"""What a process of `replicator.doctor --check_resume` sees while it trains.

The process trains as ever, into a workdir, and ends after a given step as if it were killed there.
Beside the run's own files it leaves what the doctor needs to say why a resumed run differs: digests
of the batches, and what in the step has a state that no checkpoint holds.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
import pickle
import random as python_random
import types
from collections.abc import Callable, Iterator
from typing import Any

from replicator.console import quiet

quiet.import_tensorflow()

import keras
import numpy as np
import tensorflow as tf
import tree

from replicator import atomic
from replicator.checkpoints import checkpoint
from replicator.doctor import inspection
from replicator.errors import UsageError
from replicator.step import variables
from replicator.training import loop
from replicator.training.inputs import ExampleSource
from replicator.training.training_function import TrainingFunction

_MOST = 10_000       # Python values that are looked at.
_LARGEST = 2 ** 20   # Bytes of an array that may be a state; a larger one is data.


@dataclasses.dataclass
class Watched:
  """What one process saw of its steps.

  Attributes:
    first_step: where it began.
    source: 'source', 'function' or 'none': what its examples came from.
    batches: a digest of the batch of each step.
    changed: paths of Python values that the steps after the first changed.
    draws: random draws whose state is in the operation, in words with their places.
    python_code: Python functions that the compiled step calls, in words with their places.
    labels: Keras' names of the variables, by path.
    batch_size: of the global batch.
    replicas: how many made the steps.
    strategy: its name.
  """

  first_step: int = 0
  source: str = "none"
  batches: dict[int, str] = dataclasses.field(default_factory=dict)
  changed: list[str] = dataclasses.field(default_factory=list)
  draws: list[str] = dataclasses.field(default_factory=list)
  python_code: list[str] = dataclasses.field(default_factory=list)
  labels: dict[str, str] = dataclasses.field(default_factory=dict)
  batch_size: int = 0
  replicas: int = 1
  strategy: str = ""

  def write(self, path: pathlib.Path) -> None:
    """Writes it for `load`."""
    atomic.write_whole(path, json.dumps(dataclasses.asdict(self)))


def load(path: pathlib.Path) -> Watched:
  """What `Watched.write` wrote."""
  fields = json.loads(path.read_text())
  fields["batches"] = {int(step): digest for step, digest in fields["batches"].items()}
  return Watched(**fields)


class _Enough(BaseException):
  """Ends the experiment after the step, past its own handlers."""


def train(main: Callable[[str], None], workdir: str, until: int, path: str) -> None:
  """Runs an experiment, already configured, until step `until` is saved in `workdir`.

  Args:
    main: of the experiment.
    workdir: where it resumes, too.
    until: the last step.
    path: where the chief writes what was `Watched`.

  Raises:
    UsageError: the experiment does not save that step; or as it raises.
  """
  watcher = _Watcher(until)
  with watcher.installed(), contextlib.suppress(_Enough):
    main(workdir)
    raise UsageError(f"the experiment ended before step {until}: write at least train.steps = "
                     f"{until}, and leave it to gin")
  if watcher.is_chief:
    watcher.conclude().write(pathlib.Path(path))


class _Watcher:
  """Stands in for parts of the training loop, which work as ever."""

  def __init__(self, until: int):
    self.watched = Watched()
    self.is_chief = False
    self._until = until
    self._step: Any = None
    self._inputs: Any = None
    self._evidence: inspection.Evidence | None = None
    self._python: dict[str, str] = {}

  @contextlib.contextmanager
  def installed(self) -> Iterator[None]:
    """Inside, the loop of this process is watched."""
    before = loop.TrainingFunction, loop.iterator, checkpoint.Checkpoints.save
    save = before[2]
    iterator = before[1]

    def watched_save(checkpoints: checkpoint.Checkpoints, step: int, *state: Any) -> None:
      save(checkpoints, step, *state)
      if step == self._until:
        checkpoints.wait()
        raise _Enough

    loop.TrainingFunction = self._function  # type: ignore[misc, assignment]
    loop.iterator = lambda *arguments: self._batches(iterator, *arguments)
    checkpoint.Checkpoints.save = watched_save  # type: ignore[method-assign, assignment]
    try:
      yield
    finally:
      loop.TrainingFunction, loop.iterator, checkpoint.Checkpoints.save = (  # type: ignore
          before)

  def _function(self, replicator: Any, step: Callable, *settings: Any) -> TrainingFunction:
    self.is_chief = replicator.worker_id == 0
    self._step = step
    self._evidence = seen = inspection.Evidence(step)
    self.watched.replicas, self.watched.strategy = replicator.num_replicas, replicator.name
    self.watched.labels = seen.labels

    def looked_at(*batch: Any) -> Any:
      outputs = step(*batch)
      if not tf.executing_eagerly():
        seen.look_at_graph(tf.compat.v1.get_default_graph())
      return outputs

    function = TrainingFunction(replicator, step, *settings)
    function._step_fn = looked_at
    return function

  def _batches(self, iterator: Callable[..., Iterator], inputs: Any, context: Any, first_step: int,
               *settings: Any) -> Iterator:
    self._inputs = inputs
    self.watched.first_step, self.watched.batch_size = first_step, context.global_batch_size
    if inputs is not None:
      self.watched.source = "source" if isinstance(inputs, ExampleSource) else "function"
    batches = iterator(inputs, context, first_step, *settings)
    for number, batch in enumerate(batches, first_step + 1):
      if number == first_step + 2:  # What the trace of the first call changed, every process does.
        self._python = self._python_state()
      if number > self._until:
        raise UsageError(f"step {self._until} was not saved, as its numbers are not finite")
      self.watched.batches[number] = _digest(batch)
      yield batch

  def conclude(self) -> Watched:
    """All that was seen, after the last step."""
    after = self._python_state()
    self.watched.changed = [path for path, digest in self._python.items()
                            if after.get(path, digest) != digest]
    if self._evidence:
      self.watched.draws = self._evidence.stateful_draws
      self.watched.python_code = self._evidence.python_code
    return self.watched

  def _python_state(self) -> dict[str, str]:
    # Drawn by name, and not by reference to what a checkpoint restores.
    legacy = {"np.random": np.random.get_state(), "random": python_random.getstate()}
    return {**python_state("", self._step), **python_state("inputs", self._inputs),
            **{f"the generator of {name}": _digest_of(value) for name, value in legacy.items()}}


def _digest(batch: Any) -> str:
  parts = hashlib.sha256()
  for leaf in tree.flatten(batch):
    if leaf is not None:
      parts.update(np.asarray(leaf).tobytes())
  return parts.hexdigest()[:16]


_VALUES = (bool, int, float, complex, str, bytes, np.ndarray, np.generic, np.random.Generator,
           np.random.RandomState, python_random.Random, itertools.count, set, frozenset)
_NONE_OF_PYTHON = (tf.Variable, tf.Tensor, keras.Variable, keras.optimizers.Optimizer,
                   tf.data.Dataset, types.ModuleType, type)


def python_state(name: str, root: Any) -> dict[str, str]:
  """Digests of the Python values that hang off an object, by path; none of TensorFlow's."""
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
  if children is not None:
    return dict(children)
  if type(value).__module__.partition(".")[0] in ("tensorflow", "keras", "numpy"):
    return {}
  hidden = "_" if isinstance(value, keras.layers.Layer) else "_self_"  # What Keras keeps there.
  return {name: child for name, child in getattr(value, "__dict__", {}).items()
          if not name.startswith(hidden)}


def _digest_of(value: Any) -> str:
  with contextlib.suppress(Exception):
    return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
  return repr(value)
