"""Splits an evaluation over the replicas of all workers.

    for features in distributed_evaluation.deal(lambda part: extract(samples(part)), parts):
      ...

Each part is what it is on one replica, and parts come back in their order. So what is computed from
them is the same on any number of replicas.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from replicator.step.nest import Nest
from replicator.strategies.replicator import Replicator

import numpy as np
import tensorflow as tf
import tree

Part = Callable[[int], Nest]


class EvaluationShards:
  """The part of an evaluation that each replica computes.

  The replicas are those of this process, or those of all workers if all evaluate.

  This process is number `worker` of the `workers` that evaluate.
  """

  def __init__(self, replicator: Replicator, on_all_workers: bool) -> None:
    self.worker = replicator.worker_id if on_all_workers else 0
    self.workers = replicator.num_pipelines if on_all_workers else 1
    self._replicator = replicator
    # Workers beside parameter servers, and TPUs, run compiled steps only.
    one_by_one = (replicator.is_async or replicator.name == "tpu"
                  or replicator.num_local_replicas == 1)
    self._devices = [None] if one_by_one else list(replicator.strategy.extended.worker_devices)

  def deal(self, function: Part, count: int) -> Iterator[Nest]:
    """Yields the results as the function `deal` does."""
    local = len(self._devices)
    with ThreadPoolExecutor(local) as pool:
      for first in range(0, count, self.workers * local):
        # The last round may have too few parts: the last one then comes several times.
        mine = [min(first + self.worker * local + i, count - 1) for i in range(local)]
        # Functions are traced in the first round, which only one thread at a time can do.
        one_by_one = first == 0 or local == 1 or tf.config.functions_run_eagerly()
        contexts = [contextvars.copy_context() for _ in mine]
        results = (map if one_by_one else pool.map)(
            lambda here, *each: here.run(_on_device, function, *each),
            contexts, self._devices, mine)
        yield from self._of_all(list(results))[:count - first]

  def wait_for_all(self) -> None:
    """Returns when all workers that evaluate have called it."""
    self._of_all([np.zeros([], np.int32)] * len(self._devices))

  def _of_all(self, results: list[Nest]) -> list[Nest]:
    """The results of the replicas of all workers, in the order of replicas."""
    if self.workers == 1:
      return results
    joined = self._replicator.joined(tree.map_structure(lambda *leaves: np.stack(leaves), *results))
    return [tree.map_structure(lambda x, i=i: x[i], joined)
            for i in range(self._replicator.num_replicas)]


_current: contextvars.ContextVar[EvaluationShards | None] = contextvars.ContextVar(
    "shards", default=None)


@contextlib.contextmanager
def sharded(shards: EvaluationShards) -> Iterator[None]:
  """In the body, an evaluation, `deal` divides its parts as `shards` says."""
  token = _current.set(shards)
  try:
    yield
  finally:
    _current.reset(token)


def deal(function: Part, count: int) -> Iterator[Nest]:
  """Yields `function(0)`, ..., `function(count - 1)`, computed on all replicas at the same time.

  In an evaluation of `train`, part i runs on the device of replica i % n, in Python; and if the
  evaluation is `on_all_workers`, every worker gets the results of all, so that every worker must
  call this alike. Elsewhere parts run one after the other.

  Args:
    function: makes a part from its number: a nest of arrays, whose shapes are the same for all
      parts. It may be called twice for the last one.
    count: the number of parts.
  """
  shards = _current.get()
  if shards is None:
    yield from map(function, range(count))
  else:
    yield from shards.deal(function, count)


@contextlib.contextmanager
def chief_first() -> Iterator[None]:
  """Runs the body on the chief, and then on the other workers that evaluate.

  For files that one worker makes and all workers read.
  """
  shards = _current.get()
  if shards and shards.worker:
    shards.wait_for_all()
  yield
  if shards and not shards.worker:
    shards.wait_for_all()


def _on_device(function: Part, device: str | None, part: int) -> Nest:
  with tf.device(device) if device else contextlib.nullcontext():
    return function(part)
