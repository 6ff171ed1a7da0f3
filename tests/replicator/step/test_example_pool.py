"""A pool of past examples against a model in NumPy, on any number of replicas and micro-batches."""

import re

from replicator import ExamplePool, Replicator, all_mean, microbatch, random, replica_id
from replicator.step import replicated
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf

SIZE, BATCH, STEPS = 5, 8, 4
EXAMPLES = np.random.default_rng(0).normal(size=[STEPS, BATCH, 2])


class Model:
  """The contents of a pool, example by example."""

  def __init__(self):
    self.held: dict[int, np.ndarray] = {}
    self.count = 0

  def append(self, batch: np.ndarray) -> None:
    for example in batch:
      self.held[self.count % SIZE] = example
      self.count += 1

  def exchange(self, batch: np.ndarray, drawn: np.ndarray, is_exchanged: np.ndarray,
               before: dict[int, np.ndarray]) -> np.ndarray:
    given = batch.copy()
    for i, example in enumerate(batch):
      if self.count < SIZE:
        self.held[self.count] = example
      elif is_exchanged[i]:
        given[i] = before.get(drawn[i], example)
        self.held[drawn[i]] = example
      self.count += 1
    return given

  def past(self) -> np.ndarray:
    return np.stack([self.held.get(place, np.zeros(2)) for place in range(SIZE)])

  def check(self, pool: ExamplePool) -> None:
    np.testing.assert_array_equal(replicated.read(pool.examples), self.past())
    assert int(replicated.read(pool.count)) == self.count
    for variable in (pool.examples, pool.entered, pool.count):
      copies = [copy.numpy() for copy in replicated.copies_of(variable)]
      assert all(np.array_equal(copy, copies[0]) for copy in copies)


def draws(calls: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
  """For each step, what each call of `exchange` draws: places, and whether to exchange."""
  step = lambda: [(random.uniform("pool", [BATCH], 0, SIZE, "int64"),
                   random.bernoulli("pool", [BATCH], 0.5)) for _ in range(calls)]
  one = Replicator("default")
  return [[(a.numpy(), b.numpy()) for a, b in one.run(step)[0]] for _ in range(STEPS)]


def pool_in(replicator: Replicator) -> ExamplePool:
  with replicator.scope():
    return ExamplePool(SIZE, [2], "float64")


# ---- A history ----------------------------------------------------------------------------------


def check_exchange(replicator: Replicator) -> None:
  pool, model = pool_in(replicator), Model()
  for batch, drawn in zip(EXAMPLES, draws(1), strict=True):
    given = np.concatenate(replicator.run(pool.exchange, batch))
    np.testing.assert_array_equal(given, model.exchange(batch, *drawn[0], dict(model.held)))
    model.check(pool)


def test_an_exchange_is_that_of_the_global_batch(synchronous):
  check_exchange(synchronous)


def test_an_exchange_under_xla_and_line_by_line(run_eagerly):
  check_exchange(Replicator("default", jit_compile=True))
  run_eagerly()
  check_exchange(Replicator("mirrored", logical_cpus=2))


@pytest.mark.parametrize("replicas, parts", [(1, 4), (2, 2)])
def test_micro_batches_exchange_what_the_full_batch_does(replicas, parts):
  replicator = Replicator("mirrored", logical_cpus=replicas)
  pool, model = pool_in(replicator), Model()
  weights = np.random.default_rng(1).normal(size=[BATCH, 2])

  def step(batch):
    def mean_of(part):
      past, is_filled = pool.past()
      return [tf.reduce_mean(pool.exchange(x) * part["w"]) for x in (part["x"], -part["x"])], (
          past, tf.cast(is_filled, past.dtype))
    return all_mean(microbatch(mean_of, batch, n=parts))

  for batch, drawn in zip(EXAMPLES, draws(2), strict=True):
    before, count = dict(model.held), model.count
    past = model.past()
    given = [model.exchange(sign * batch, *call, before)
             for sign, call in zip((1, -1), drawn, strict=True)]
    for means, (found, is_filled) in replicator.run(step, {"x": batch, "w": weights}):
      np.testing.assert_allclose(means, [np.mean(x * weights) for x in given], rtol=1e-12)
      np.testing.assert_allclose(found, past, rtol=1e-15)
      np.testing.assert_array_equal(is_filled, np.arange(SIZE) < count)
    model.check(pool)


@pytest.mark.parametrize("replicas, parts", [(1, 1), (1, 4), (2, 2)])
def test_more_examples_than_a_batch_has_are_exchanged(replicas, parts):
  replicator = Replicator("mirrored", logical_cpus=replicas)
  pool, model = pool_in(replicator), Model()
  both = lambda x: tf.concat([x, 2 * x], 0)
  exchange = lambda x: tf.reduce_mean(pool.exchange(both(x)))
  step = lambda: (random.uniform("pool", [2 * BATCH], 0, SIZE, "int64"),
                  random.bernoulli("pool", [2 * BATCH], 0.5))
  mean_of = lambda x: all_mean(microbatch(exchange, x, n=parts))
  one = Replicator("default")
  for batch in EXAMPLES:
    drawn = [x.numpy() for x in one.run(step)[0]]
    # Each replica passes in its own examples, and then their doubles.
    given = np.concatenate([both(own) for own in np.split(batch, replicas)])
    mean = model.exchange(given, *drawn, dict(model.held)).mean()
    found = replicator.run(mean_of, batch)
    np.testing.assert_allclose(found, mean, rtol=1e-12)
    model.check(pool)


def test_the_probability_and_the_precision_of_an_exchange():
  replicator = Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    pool = ExamplePool(SIZE, [2])  # float32, as the run.
  first, second = EXAMPLES[:2]
  never = lambda x: pool.exchange(tf.cast(x, tf.bfloat16), 0.0)
  always = lambda x: pool.exchange(tf.cast(x, tf.bfloat16), 1.0)
  rounded = lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy()
  for given in replicator.run(never, first):
    assert given.dtype == tf.bfloat16
  given = np.concatenate([tf.cast(x, tf.float32) for x in replicator.run(always, second)])
  held = {tuple(row) for row in rounded(first)[:SIZE]}
  assert all(tuple(row) in held for row in given)
  assert {tuple(row) for row in replicated.read(pool.examples)} <= held | {
      tuple(row) for row in rounded(second)}


def test_no_gradient_passes_through_a_pool():
  pool = ExamplePool(SIZE, [2], "float64")
  x = tf.constant(EXAMPLES[0])
  with tf.GradientTape() as tape:
    tape.watch(x)
    shown = pool.exchange(x)
  assert tape.gradient(shown, x) is None


# ---- A queue ------------------------------------------------------------------------------------


def test_a_queue_holds_the_newest_of_the_global_batches(one_or_two):
  pool, model = pool_in(one_or_two), Model()

  def step(x):
    pool.append(x[:, 0])
    past, is_filled = pool.past()  # As before the step, though it is called after `append`.
    pool.append(x[:, 1])
    return past, is_filled

  batches = EXAMPLES.reshape([-1, 4, 2, 2])
  for batch in batches:
    past, count = model.past(), model.count
    for found, is_filled in one_or_two.run(step, batch):
      np.testing.assert_array_equal(found, past)
      np.testing.assert_array_equal(is_filled, np.arange(SIZE) < count)
    for i in range(2):
      model.append(batch[:, i])
    model.check(pool)


def test_a_queue_takes_as_many_examples_as_each_replica_has():
  replicator = Replicator("mirrored", logical_cpus=2)
  pool, model = pool_in(replicator), Model()
  step = lambda x: pool.append(tf.boolean_mask(x, x[:, 0] > 0.5))
  for batch in [np.zeros([BATCH, 2]), *EXAMPLES]:
    replicator.run(step, batch)
    model.append(batch[batch[:, 0] > 0.5])
    model.check(pool)


def test_in_plain_code_a_pool_is_as_it_is():
  pool, model = ExamplePool(SIZE, [2], "float64"), Model()
  for batch in EXAMPLES[:, :3]:
    pool.append(tf.constant(batch))
    model.append(batch)
    np.testing.assert_array_equal(pool.past()[0], model.past())
  model.check(pool)


# ---- Calls that cannot be right -----------------------------------------------------------------


@pytest.mark.parametrize("call, said", [
    (lambda pool: ExamplePool(0, [2]), "size = 0: must be the number of examples it holds"),
    (lambda pool: pool.append(tf.zeros([4, 3], tf.float64)),
     r"examples of shape \(4, 3\) do not fit a pool of \[2\]; pass \[n, 2\]"),
    (lambda pool: pool.exchange(tf.zeros([4, 2], tf.int32)),
     r"int32 examples do not fit a float64 pool; cast them, or write .* dtype='int32'"),
    (lambda pool: tf.cond(replica_id() == 0, lambda: pool.append(tf.zeros([4, 2])), lambda: None),
     "called inside a tf.while_loop, tf.cond or tf.function of the step; call it directly"),
    (lambda pool: microbatch(lambda x: pool.append(tf.boolean_mask(x, x[:, 0] > 0)),
                             tf.zeros([4, 2]), n=2),
     "the number of examples of a micro-batch must be known before the step runs")])
def test_what_a_pool_cannot_take(call, said):
  replicator = Replicator("default")
  pool = pool_in(replicator)
  assert re.match(rf"tests/replicator/step/test_example_pool\.py:\d+: ExamplePool.*{said}",
                  refusal(replicator.run, lambda: call(pool)))
