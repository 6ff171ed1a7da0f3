"""Splits an evaluation over the replicas of all workers.

    for features in distributed_evaluation.deal(lambda part: extract(samples(part)), parts):
      ...

Each part is the same as on one replica, including its draws from `replicator.random`, and parts are
returned in order. So results computed from them are the same on any number of replicas.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from replicator.step import context
from replicator.step.nest import Nest
from replicator.strategies.replicator import Replicator

import numpy as np
import tensorflow as tf
import tree

Part = Callable[[int], Nest]

_DEALS = "parts/"  # Calls of `deal` are counted like draws from a stream of this name.


class EvaluationShards:
  """The division of an evaluation over replicas: of this process, or of all workers.

  This process is number `worker` of the `workers` that evaluate.
  """

  def __init__(self, replicator: Replicator, on_all_workers: bool) -> None:
    self.worker = replicator.worker_id if on_all_workers else 0
    self.workers = replicator.num_pipelines if on_all_workers else 1
    self._replicator = replicator
    # Workers of parameter servers and TPUs run only compiled steps.
    one_by_one = (replicator.is_async or replicator.name == "tpu"
                  or replicator.num_local_replicas == 1)
    self._devices = [None] if one_by_one else list(replicator.strategy.extended.worker_devices)

  def deal(self, function: Part, count: int) -> Iterator[Nest]:
    """Yields the results of all parts; see the function `deal`."""
    local = len(self._devices)
    with ThreadPoolExecutor(local) as pool:
      for first in range(0, count, self.workers * local):
        # The last round may have too few parts; then the last part is computed several times.
        mine = [min(first + self.worker * local + i, count - 1) for i in range(local)]
        # Functions are traced in the first round; only one thread at a time can trace.
        one_by_one = first == 0 or local == 1 or tf.config.functions_run_eagerly()
        contexts = [contextvars.copy_context() for _ in mine]
        results = (map if one_by_one else pool.map)(
            lambda here, *each: here.run(_on_device, function, *each),
            contexts, self._devices, mine)
        yield from self._of_all(list(results))[:count - first]

  def wait_for_all(self) -> None:
    """Waits until all workers that evaluate have called it."""
    self._of_all([np.zeros([], np.int32)] * len(self._devices))

  def _of_all(self, results: list[Nest]) -> list[Nest]:
    """Returns the results of the replicas of all workers, in the order of replicas."""
    if self.workers == 1:
      return results
    joined = self._replicator.joined(tree.map_structure(lambda *leaves: np.stack(leaves), *results))
    return [tree.map_structure(lambda x, i=i: x[i], joined)
            for i in range(self._replicator.num_replicas)]


_current: contextvars.ContextVar[EvaluationShards | None] = contextvars.ContextVar(
    "shards", default=None)


@contextlib.contextmanager
def sharded(shards: EvaluationShards) -> Iterator[None]:
  """Makes `deal` split its parts according to `shards` in the body, which is an evaluation."""
  token = _current.set(shards)
  try:
    yield
  finally:
    _current.reset(token)


def deal(function: Part, count: int) -> Iterator[Nest]:
  """Yields `function(0)`, ..., `function(count - 1)`, computed on all replicas in parallel.

  In an evaluation of `train`, part i runs in Python on the device of replica i % n. If the
  evaluation is `on_all_workers`, every worker gets all results, so all workers must make the same
  call. Elsewhere, parts run one after the other. Each part has its own random streams: different
  parts draw different numbers, which do not depend on the number of replicas.

  Args:
    function: computes a part from its number: a nest of arrays, with the same shapes for all parts.
      It may be called more than once for the last part.
    count: the number of parts.
  """
  shards, draws = _current.get(), context.current().draws
  deal = draws[_DEALS]
  draws[_DEALS] += 1

  def part(number: int) -> Nest:
    with context.streams_apart(f"part {number} of deal {deal}"):
      return function(number)

  yield from map(part, range(count)) if shards is None else shards.deal(part, count)


@contextlib.contextmanager
def chief_first() -> Iterator[None]:
  """Runs the body on the chief, and then on the other workers that evaluate.

  Use it for files that one worker writes and all workers read.
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
