"""Random streams: the draws belong to the example, whatever the replicas, device or mode."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from replicator import Replicator, random, step_number
from replicator.errors import UsageError

ROWS = 8  # Of the global batch.


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
  }


def draw(replicator: Replicator, draws=all_kinds, steps: int = 2) -> dict[str, np.ndarray]:
  """What `steps` steps draw for the global batch: name -> [steps, ROWS, ...]."""
  step = lambda: draws(ROWS // replicator.num_replicas)
  parts = [replicator.run(step) for _ in range(steps)]
  return {name: np.stack([np.concatenate([replica[name] for replica in replicas])
                          for replicas in parts]) for name in parts[0][0]}


def one(**kwargs) -> Replicator:
  return Replicator("one_device", **kwargs)


@functools.cache
def drawn_alone() -> dict[str, np.ndarray]:
  """What all must agree with: the draws of one replica in a compiled step, with seed 0."""
  return draw(one())


# ---- The same draws everywhere ------------------------------------------------------------------


@pytest.mark.parametrize("strategy, devices", [
    ("default", None), ("central_storage", 2), ("mirrored", 2), ("mirrored", 4)])
def test_the_global_batch_gets_the_same_draws_under_every_strategy(strategy, devices):
  expected, drawn = drawn_alone(), draw(Replicator(strategy, logical_cpus=devices))
  for name, values in expected.items():
    np.testing.assert_array_equal(drawn[name], values, err_msg=name)


def test_eight_replicas_get_the_same_draws():
  draws = lambda rows: {"z": random.normal("z", [rows, 7])}
  np.testing.assert_array_equal(draw(Replicator("mirrored", logical_cpus=8), draws)["z"],
                                draw(one(), draws)["z"])


def test_xla_draws_the_same():
  expected, drawn = drawn_alone(), draw(one(jit_compile=True))
  for name, values in expected.items():
    if name in ("normal", "again", "normal64"):  # Its inverse error function rounds otherwise.
      np.testing.assert_allclose(
          drawn[name], values, rtol=1e-12 if "64" in name else 1e-5, err_msg=name)
    else:
      np.testing.assert_array_equal(drawn[name], values, err_msg=name)


@pytest.mark.parametrize("strategy, devices", [("one_device", None), ("mirrored", 2)])
def test_eager_steps_draw_the_same(run_eagerly, strategy, devices):
  expected = drawn_alone()
  run_eagerly()
  drawn = draw(Replicator(strategy, logical_cpus=devices))
  for name, values in expected.items():
    np.testing.assert_array_equal(drawn[name], values, err_msg=name)


def test_a_resumed_step_draws_what_it_would_have_drawn():
  replicator = one()
  compiled = replicator.compile(lambda step: replicator.on_replicas(
      lambda: all_kinds(ROWS)["normal"], step, ()))
  np.testing.assert_array_equal(compiled(tf.constant(1, tf.int64)), drawn_alone()["normal"][1])


def test_outside_of_steps_seeding_starts_the_streams_again(seed):
  first = [random.normal("z", [3]).numpy() for _ in range(2)]
  assert not np.array_equal(*first)
  seed(0)
  np.testing.assert_array_equal(random.normal("z", [3]), first[0])


def test_draws_outside_of_a_step_do_not_move_those_inside(seed):
  random.normal("z", [3])
  np.testing.assert_array_equal(draw(one())["normal"], drawn_alone()["normal"])


# ---- Different draws where they must differ -----------------------------------------------------


def test_no_two_draws_coincide(seed):
  """Over seeds, names, draws within a step, steps, and examples; a collision is 2^-52."""
  def draws(rows):
    return {f"{name}{i}": random.normal(name, [rows, 1], dtype="float64")
            for name, i in itertools.product(["z", "y", "0/z"], range(2))}
  drawn = []
  for number in (0, 1, 2 ** 40):
    seed(number)
    drawn.append(list(draw(one(), draws).values()))
  values = np.ravel(drawn)
  assert values.size == 3 * 6 * 2 * ROWS
  assert np.unique(values).size == values.size


def test_neighbouring_streams_are_independent(seed):
  def draws(rows):
    return {name: random.normal(name, [rows, 1000]) for name in ("a", "b")}
  drawn = draw(one(), draws)
  a, b = (drawn[name].reshape(2 * ROWS, 1000) for name in "ab")
  correlations = np.corrcoef(np.concatenate([a, b]))
  # Of 1000 independent pairs the coefficient has a standard deviation of 0.032.
  assert np.abs(correlations - np.eye(len(correlations))).max() < 0.16


# ---- The distributions --------------------------------------------------------------------------

# Of 200,000 draws; a correct generator fails with probability 1e-4, and the seed is fixed.
COUNT, SMALLEST_P = 200_000, 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_has_its_distribution(seed, dtype):
  drawn = random.normal("z", [COUNT], 2.0, 3.0, dtype)
  assert drawn.dtype == dtype
  standard = (drawn.numpy().astype(np.float64) - 2.0) / 3.0
  assert scipy.stats.kstest(standard, "norm").pvalue > SMALLEST_P
  # Moments of N(0, 1) are 0, 1, 0, 3; of their estimates the variances are 1, 2, 15, 96 over n.
  for power, (moment, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], start=1):
    assert abs(np.mean(standard ** power) - moment) < 4 * math.sqrt(variance / COUNT)
  assert 4.0 < np.abs(standard).max() < 6.5  # It has tails.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_has_its_distribution(seed, dtype):
  drawn = random.uniform("u", [COUNT], -1.0, 3.0, dtype)
  assert drawn.dtype == dtype
  assert -1.0 <= drawn.numpy().min() < -0.999 and 2.999 < drawn.numpy().max() < 3.0
  assert scipy.stats.kstest(drawn.numpy(), "uniform", args=(-1.0, 4.0)).pvalue > SMALLEST_P


def test_integers_have_their_distribution(seed):
  drawn = random.uniform("label", [COUNT], -3, 7, "int32")
  assert drawn.dtype == tf.int32
  values, counts = np.unique(drawn, return_counts=True)
  assert list(values) == list(range(-3, 7))
  assert scipy.stats.chisquare(counts).pvalue > SMALLEST_P


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_below_maxval(seed, dtype):
  drawn = tf.cast(random.uniform("u", [COUNT], dtype=dtype), tf.float64).numpy()
  assert drawn.min() >= 0.0 and drawn.max() < 1.0
  assert abs(drawn.mean() - 0.5) < 0.01
  assert random.normal("z", [2], dtype=dtype).dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_is_finite_and_symmetric_at_its_ends(monkeypatch, dtype):
  # All bits zero and all bits one, the ends of the range of random bits.
  def ends(shape, seed, minval, maxval, dtype, alg):
    return tf.constant([0, dtype.max], dtype)
  monkeypatch.setattr(tf.random, "stateless_uniform", ends)
  low, high = random.normal("z", [2], dtype=dtype).numpy()
  assert np.isfinite(low) and low < -5
  np.testing.assert_allclose(high, -low, rtol=1e-6)


def test_dtypes_follow_the_run(float64):
  assert random.normal("z", [2]).dtype == tf.float64
  assert random.uniform("u", [2]).dtype == tf.float64


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_otherwise_draws_are_float32(set_precision, policy):
  set_precision(policy)
  assert random.normal("z", [2]).dtype == tf.float32
  assert random.uniform("u", [2]).dtype == tf.float32


# ---- Where a draw would repeat ------------------------------------------------------------------


def in_a_function():
  return tf.function(lambda: random.normal("z", [2]), autograph=False)()


def in_a_while_loop():
  return tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, random.normal("z", [2])),
                       [0, tf.zeros([2])])[1]


def in_a_branch_of_a_while_loop():
  def body(i, _):
    return i + 1, tf.cond(i > 1, lambda: random.normal("z", [2]), lambda: tf.zeros([2]))
  return tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([2])])[1]


@pytest.mark.parametrize("step", [in_a_function, in_a_while_loop, in_a_branch_of_a_while_loop])
@pytest.mark.parametrize("strategy, devices", [("one_device", None), ("mirrored", 2)])
def test_a_draw_that_would_repeat_is_refused(strategy, devices, step):
  with pytest.raises(UsageError, match="random stream 'z': drawn inside a "):
    Replicator(strategy, logical_cpus=devices).run(step)


def test_a_draw_in_a_compiled_function_outside_of_steps_is_refused():
  with pytest.raises(UsageError, match="draw before it and pass the tensor in"):
    in_a_function()


@pytest.mark.parametrize("strategy, devices", [("one_device", None), ("mirrored", 2)])
def test_a_branch_of_a_cond_may_draw(strategy, devices):
  def draws(rows):
    inner = lambda: tf.cond(step_number() < 5, lambda: random.normal("z", [rows, 2]),
                            lambda: tf.zeros([rows, 2]))
    return {"z": tf.cond(step_number() < 1, inner, lambda: -random.normal("y", [rows, 2]))}
  drawn = draw(Replicator(strategy, logical_cpus=devices), draws)["z"]
  expected = draw(one(), lambda rows: {n: random.normal(n, [rows, 2]) for n in "zy"})
  np.testing.assert_array_equal(drawn, [expected["z"][0], -expected["y"][1]])
