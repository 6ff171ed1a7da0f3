"""Random streams: the draws belong to the example, whatever the replicas, device or mode."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from replicator import Replicator, microbatch, random
from replicator.collectives import collectives
from replicator.step import random_bits

ROWS = 8  # In the global batch.


def all_kinds(rows: int) -> dict[str, tf.Tensor]:
  """Draws of every kind; odd sizes, so that no vector instruction divides them evenly."""
  return {
      "normal": random.normal("z", [rows, 7]),
      "again": random.normal("z", [rows, 7]),
      "normal64": random.normal("z64", [rows, 3], 1.0, 2.0, "float64"),
      "uniform": random.uniform("u", [rows]),
      "uniform64": random.uniform("u64", [rows, 1, 2], -1.0, 3.0, "float64"),
      "int32": random.uniform("label", [rows], 0, 10, "int32"),
      "int64": random.uniform("index", [rows, 2], -5, 2 ** 40, tf.int64),
      "truncated": random.truncated_normal("t", [rows, 5], 0.0, 2.0),
      "bernoulli": random.bernoulli("b", [rows, 7], 0.3),
      "categorical": random.categorical("c", random.uniform("logits", [rows, 5], -2.0, 2.0)),
      "permutation": random.permutation("p", [rows, 5]),
  }


INEXACT = {"normal": 1e-5, "normal64": 1e-12}


def draw(replicator: Replicator, draws=all_kinds, steps: int = 2) -> dict[str, np.ndarray]:
  """The draws of `steps` steps for the global batch: name -> [steps, ROWS, ...]."""
  step = lambda: draws(ROWS // replicator.num_replicas)
  parts = [replicator.run(step) for _ in range(steps)]
  return {name: np.stack([np.concatenate([replica[name] for replica in replicas])
                          for replicas in parts]) for name in parts[0][0]}


def one(**kwargs) -> Replicator:
  return Replicator("one_device", **kwargs)


@functools.cache
def drawn_alone() -> dict[str, np.ndarray]:
  """The reference: the draws of one replica in a compiled step, with seed 0."""
  return draw(one())


# ---- The same draws everywhere ------------------------------------------------------------------


def test_the_global_batch_gets_the_same_draws_on_four_replicas():
  np.testing.assert_equal(draw(Replicator("mirrored", logical_cpus=4)), drawn_alone())


def test_xla_draws_the_same():
  def some_kinds(rows):  # XLA compiles what is returned.
    drawn = all_kinds(rows)
    return {name: drawn[name] for name in (*INEXACT, "int64", "categorical", "permutation")}
  drawn = draw(one(jit_compile=True), some_kinds)
  for name, values in drawn.items():
    # The inverse error function of XLA rounds differently.
    np.testing.assert_allclose(values, drawn_alone()[name], rtol=INEXACT.get(name, 0),
                               err_msg=name)


def test_eager_steps_and_their_micro_batches_draw_the_same(run_eagerly):
  expected = drawn_alone()
  run_eagerly()
  np.testing.assert_equal(draw(Replicator("mirrored", logical_cpus=2)), expected)
  assert_first_step(in_parts(one(), 2, all_kinds))


def two_kinds(rows: int) -> dict[str, tf.Tensor]:
  """Of `all_kinds`, those of 32 and of 64 bits whose rows are no whole numbers of Philox."""
  return {"normal": random.normal("z", [rows, 7]),
          "normal64": random.normal("z64", [rows, 3], 1.0, 2.0, "float64")}


def in_parts(replicator: Replicator, n: int, draws, with_collective: bool = False
             ) -> dict[str, np.ndarray]:
  """The draws of n micro-batches for the global batch in one step: name -> [ROWS, ...]."""
  def part(is_example):  # [b, ROWS], rows of the identity
    if with_collective:
      collectives.all_mean(tf.zeros([]))
    values = {name: tf.cast(x, tf.float64) for name, x in draws(is_example.shape[0]).items()}
    return {name: tf.tensordot(is_example, x, [[0], [0]]) / is_example.shape[0]
            for name, x in values.items()}
  identity = np.eye(ROWS)
  parts = replicator.run(lambda batch: microbatch(part, batch, n=n), identity)
  return {name: sum(np.asarray(replica[name]) for replica in parts) * ROWS / len(parts)
          for name in parts[0]}


def assert_first_step(drawn: dict[str, np.ndarray]) -> None:
  np.testing.assert_equal(drawn, {name: drawn_alone()[name][0] for name in drawn})


def test_micro_batches_in_a_loop_draw_what_the_batch_does():
  assert_first_step(in_parts(one(), 4, two_kinds))


@pytest.mark.parametrize("with_collective, large_row", [
    (True, 4096), (False, 1)], ids=["unrolled", "row_by_row"])
def test_micro_batches_on_two_replicas_draw_what_the_batch_does(
    monkeypatch, with_collective, large_row):
  monkeypatch.setattr(random_bits, "_LARGE_ROW", large_row)
  mirrored = Replicator("mirrored", logical_cpus=2)
  assert_first_step(in_parts(mirrored, 2, two_kinds, with_collective))


def test_a_replica_makes_the_bits_of_its_own_rows_only(monkeypatch):
  made = []
  make = tf.raw_ops.StatelessRandomUniformFullIntV2
  monkeypatch.setattr(tf.raw_ops, "StatelessRandomUniformFullIntV2", lambda shape, **arguments: (
      made.append(shape[0]), make(shape=shape, **arguments))[1])
  Replicator("mirrored", logical_cpus=2).run(lambda: random.normal("z", [4, 8]))
  assert max(made) == 4 * 8


def test_the_precision_of_the_run_does_not_change_choices(set_precision):
  expected = drawn_alone()
  set_precision("float64")
  logits = tf.constant(draw(one(), lambda rows: {
      "x": random.uniform("logits", [rows, 5], -2.0, 2.0, "float32")}, steps=1)["x"][0])
  drawn = draw(one(), lambda rows: {
      "bernoulli": random.bernoulli("b", [rows, 7], 0.3),
      "categorical": random.categorical("c", logits),
      "permutation": random.permutation("p", [rows, 5])}, steps=1)
  np.testing.assert_equal({name: values[0] for name, values in drawn.items()},
                          {name: expected[name][0] for name in drawn})


def test_a_resumed_step_draws_what_it_would_have_drawn():
  replicator = one()
  compiled = replicator.compile(lambda step: replicator.on_replicas(
      lambda: all_kinds(ROWS)["normal"], step, ()))
  np.testing.assert_array_equal(compiled(tf.constant(1, tf.int64)), drawn_alone()["normal"][1])


def test_seeding_starts_the_streams_outside_of_steps_again_which_do_not_move_those_inside():
  first = [random.normal("z", [3]).numpy() for _ in range(2)]
  assert not np.array_equal(*first)
  random.set_seed(0)
  np.testing.assert_array_equal(random.normal("z", [3]), first[0])
  np.testing.assert_array_equal(draw(one())["normal"], drawn_alone()["normal"])


# ---- Different draws where they must differ -----------------------------------------------------


def test_no_two_draws_coincide():
  """Over seeds, names, draws within a step, steps, and examples; a collision is 2^-52."""
  def draws(rows):
    return {f"{name}{i}": random.normal(name, [rows, 1], dtype="float64")
            for name, i in itertools.product(["z", "y", "0/z"], range(2))}
  drawn = []
  for number in (0, 2 ** 40):
    random.set_seed(number)
    drawn.append(list(draw(one(), draws).values()))
  values = np.ravel(drawn)
  assert values.size == 2 * 6 * 2 * ROWS
  assert np.unique(values).size == values.size


def test_seeds_for_others_depend_on_the_run_and_the_name():
  def seeds(seed):
    random.set_seed(seed)
    return [random.seed_of(name) for name in ("actor", "evaluation")]

  assert seeds(1) == seeds(1)
  assert len({*seeds(1), *seeds(2)}) == 4
  assert all(0 <= seed < 2 ** 63 for seed in seeds(1))
