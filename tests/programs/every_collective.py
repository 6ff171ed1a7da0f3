"""Every collective and its gradient against the formulas of the docstrings, in NumPy float64.

    replicator launch --workers=3 -- python -m tests.programs.every_collective

checks them in three processes; tests check them in one.
"""

import sys
from collections.abc import Callable

import replicator
from replicator import Replicator
from replicator.step import context
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.distributed_evaluation import EvaluationShards, deal, sharded

import numpy as np
import tensorflow as tf

ROWS, COLUMNS = 24, 2  # The shape of each replica's tensor. 1, 2, 3, 4 and 8 divide the rows.

Array = np.ndarray


def parts(x: Array) -> Array:
  """`[replicas, replicas * n, ...] -> [replicas, replicas, n, ...]`."""
  return x.reshape(len(x), len(x), -1, *x.shape[2:])


def to_all(x: Array, size: int) -> Array:
  return np.stack([x] * size)


def gradient_to_the_chosen(y: Array, x: Array, dy: Array) -> Array:
  chosen = (x == y).astype(float)
  return chosen / chosen.sum(0) * dy.sum(0)


# The call on one replica; its result on all replicas of a group, `x [s, ...] -> y [s, ...]`; and
# the gradient, `(x, dy) -> dx`.
Collective = tuple[Callable, Callable[[Array], Array], Callable[[Array, Array], Array]]
COLLECTIVES: dict[str, Collective] = {
    "all_sum": (replicator.all_sum, lambda x: to_all(x.sum(0), len(x)),
                lambda x, dy: to_all(dy.sum(0), len(x))),
    "all_mean": (replicator.all_mean, lambda x: to_all(x.mean(0), len(x)),
                 lambda x, dy: to_all(dy.mean(0), len(x))),
    "all_min": (replicator.all_min, lambda x: to_all(x.min(0), len(x)),
                lambda x, dy: gradient_to_the_chosen(x.min(0), x, dy)),
    "all_max": (replicator.all_max, lambda x: to_all(x.max(0), len(x)),
                lambda x, dy: gradient_to_the_chosen(x.max(0), x, dy)),
    "all_gather": (replicator.all_gather, lambda x: to_all(x, len(x)), lambda x, dy: dy.sum(0)),
    "all_concat": (lambda x, groups: replicator.all_concat(x, 1, groups),
                   lambda x: to_all(np.concatenate(x, axis=1), len(x)),
                   lambda x, dy: np.stack(np.split(dy.sum(0), len(x), axis=1))),
    "broadcast": (lambda x, groups: replicator.broadcast(x, 0, groups),
                  lambda x: to_all(x[0], len(x)),
                  lambda x, dy: np.stack([dy.sum(0), *np.zeros_like(x[1:])])),
    "reduce_scatter": (replicator.reduce_scatter, lambda x: np.stack(np.split(x.sum(0), len(x))),
                       lambda x, dy: to_all(np.concatenate(dy), len(x))),
    "all_to_all": (replicator.all_to_all, lambda x: parts(x).swapaxes(0, 1).reshape(x.shape),
                   lambda x, dy: parts(dy).swapaxes(0, 1).reshape(x.shape)),
}


def inputs(replicas: int) -> Array:
  """`[replicas, ROWS, COLUMNS]`, with some equal values, so that minima are shared."""
  x = np.random.default_rng(0).normal(size=[replicas, ROWS, COLUMNS])
  x[:, 0] = 0.5
  return x


def cotangent(shape: list[int], replica: int | tf.Tensor) -> tf.Tensor:
  """The gradient that arrives at a replica: some numbers, different on each replica."""
  size = int(np.prod(shape))
  return tf.reshape(tf.cos(tf.range(size, dtype=tf.float64) + 10.0 * tf.cast(replica, tf.float64)),
                    shape)


def step(x: tf.Tensor, groups: list | None) -> dict[str, tuple[tf.Tensor, ...]]:
  """For x `[ROWS, COLUMNS]`, by collective: `y, dx`."""
  results = {}
  for name, (call, _, _) in COLLECTIVES.items():
    with tf.GradientTape() as tape:
      tape.watch(x)
      y, none = call([x, None], groups=groups)
      assert none is None
    dx = tape.gradient(y, x, cotangent(y.shape, replicator.replica_id()))
    results[name] = (y, dx)
  return results


def expected(name: str, replicas: int, groups: list | None) -> tuple[Array, Array]:
  """The expected `y, dx` of all replicas, `[replicas, ...]`."""
  _, forward, backward = COLLECTIVES[name]
  x = inputs(replicas)
  y, dx = [None] * replicas, [None] * replicas
  for group in groups or [list(range(replicas))]:
    outputs = forward(x[group])
    dy = np.stack([cotangent(outputs.shape[1:], r) for r in group])
    for member, output, gradient in zip(group, outputs, backward(x[group], dy), strict=True):
      y[member], dx[member] = output, gradient
  return np.stack(y), np.stack(dx)


def check(replicator_: Replicator, groups: list | None) -> None:
  """Runs and checks every collective on this process's replicas."""
  n, local = replicator_.num_replicas, replicator_.num_local_replicas
  first = replicator_.worker_id * local
  mine = inputs(n)[first:first + local].reshape(-1, COLUMNS)
  for i, results in enumerate(replicator_.run(lambda x: step(x, groups), mine)):
    for name, found in results.items():
      for actual, reference in zip(found, expected(name, n, groups), strict=True):
        message = f"{name}, replica {first + i} of {n}, groups {groups}"
        np.testing.assert_allclose(actual, reference[first + i], 1e-12, 1e-14, err_msg=message)
        assert actual.dtype == tf.float64


def check_unequal_lengths(workers: Replicator) -> None:
  """Checks `all_concat` of as many rows as each replica's number, which its graph does not know."""
  def step() -> tuple[tf.Tensor, tf.Tensor]:
    number = tf.cast(replicator.replica_id() + 1, tf.float32)
    # In a process of its own, a replica's number is a constant, and so would be the length.
    rows = tf.range(tf.cast(workers.num_replicas, tf.float32)) < number
    own = tf.boolean_mask(tf.fill(rows.shape, number), rows)
    return tuple(replicator.all_concat([own, own[:-1]]))

  numbers = np.arange(workers.num_replicas)
  for joined, shorter in workers.run(step):
    np.testing.assert_array_equal(joined, np.repeat(numbers + 1, numbers + 1))
    np.testing.assert_array_equal(shorter, np.repeat(numbers + 1, numbers))


def check_shared_evaluation(workers: Replicator) -> None:
  """Checks that every worker gets the parts of all, as on one replica, and computes its own."""
  computed: list[int] = []

  def part(number: int) -> dict[str, float]:
    computed.append(number)
    return {"square": number ** 2, "drawn": float(replicator.random.normal("z", [1])[0])}

  def evaluation() -> list[dict[str, float]]:
    with context.entered(tf.constant(0, tf.int64)):
      return list(deal(part, 7))

  expected = evaluation()
  assert [each["square"] for each in expected] == [i ** 2 for i in range(7)]
  computed.clear()
  with sharded(EvaluationShards(workers, on_all_workers=True)):
    assert evaluation() == expected
  own = set(range(workers.worker_id, 7, workers.num_replicas))
  assert own <= set(computed) <= own | {6}, computed  # The last part fills the last round.


def check_disagreement(workers: Replicator) -> None:
  """Checks that workers that call different collectives raise an error instead of waiting."""
  def disagreeing_step() -> dict[str, tf.Tensor]:
    collective = replicator.all_max if workers.worker_id == 1 else replicator.all_min
    return {"a": replicator.all_sum(1.0), "b": collective(1.0)}

  try:
    CompiledStep(workers, disagreeing_step, 1, logs=True)(0, None)
  except replicator.UsageError as error:
    assert "as collective 2 of the step, but other workers do not" in str(error)
  else:
    assert workers.num_replicas == 1


if __name__ == "__main__":
  workers = Replicator("multi_worker_mirrored")
  check(workers, None)
  check(workers, [[i] for i in range(workers.num_replicas)])
  check_unequal_lengths(workers)
  check_shared_evaluation(workers)
  check_disagreement(workers)
  print(f"checked {workers.num_replicas} replicas")
  sys.stdout.flush()
