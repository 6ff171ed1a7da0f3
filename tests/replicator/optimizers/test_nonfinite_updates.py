"""Gradients that are not finite: their update is skipped on all replicas, or made and counted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator import Replicator, step_number, wrap_optimizer
from replicator.training.training_function import TrainingFunction
from tests.replicator.optimizers import small_network as small
from tests.replicator.optimizers.small_network import K


def train_with_bad_examples(replicator: Replicator, **options):
  """4 steps in one call, the first and the last with an infinite example on one replica."""
  with replicator.scope():
    variables = small.make_variables(keras.constraints.MaxNorm(3.0))
    wrapped = wrap_optimizer(small.OPTIMIZERS["Adam"](), variables, ema_decay=0.5, ema_start=1,
                             **options)

  def step(batch):
    wrapped.apply(small.gradients_of(variables, batch, step_number()))
    return {"nonfinite": wrapped.nonfinite_updates}

  inputs = {name: np.stack([value] * 4) for name, value in small.BATCH.items()}
  inputs["x"][[0, 3], 0, 0] = np.inf
  logged, _ = TrainingFunction(replicator, step, 4)(0, inputs).fetch()
  return variables, wrapped, logged["nonfinite"]


def check_that_the_update_is_skipped(replicator: Replicator, **options) -> None:
  variables, wrapped, nonfinite = train_with_bad_examples(
      replicator, skip_nonfinite=True, **options)
  expected = small.train_plainly(small.OPTIMIZERS["Adam"](), 3, keras.constraints.MaxNorm(3.0),
                                 first_step=1)
  np.testing.assert_array_equal(nonfinite, [1, 1, 1, 2])
  for i in range(replicator.num_replicas):  # Each replica's own copy.
    copies = [replicator.local_results(v.value)[i].numpy() for v in variables]
    small.assert_close([copies], expected[-1:])
  small.assert_close([small.averages_of(wrapped)], [small.moving_average(expected, 0.5, start=1)])
  assert wrapped.keras_optimizer.iterations.numpy() == 2


def test_an_update_that_is_not_finite_is_skipped_on_all_replicas(float64, synchronous):
  check_that_the_update_is_skipped(synchronous)


def test_it_is_skipped_in_any_way_of_running_and_if_its_norm_is_not_finite(float64, run_eagerly):
  check_that_the_update_is_skipped(Replicator("one_device", jit_compile=True), clip_norm=1e3)
  run_eagerly()
  check_that_the_update_is_skipped(Replicator("mirrored", logical_cpus=2))


def test_by_default_an_update_that_is_not_finite_is_made_and_counted(float64):
  variables, wrapped, nonfinite = train_with_bad_examples(Replicator("mirrored", logical_cpus=2))
  np.testing.assert_array_equal(nonfinite, [1, 2, 3, 4])
  assert np.isnan(variables[0].numpy()).any()
  assert wrapped.keras_optimizer.iterations.numpy() == 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_number_that_is_not_finite_counts(dtype):
  variables = [keras.Variable(tf.zeros([4]), dtype=dtype), keras.Variable(0.0, dtype="float32")]
  for bad, count in ((6e4, 0), (np.inf, 1), (-np.inf, 1), (np.nan, 1)):
    values = tf.cast(tf.constant([6e4, 6e4, bad, -6e4]), dtype)
    wrapped = wrap_optimizer(K.SGD(1.0), variables)
    wrapped.apply([values, tf.constant(1.0)])
    assert wrapped.nonfinite_updates.numpy() == count


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_gradient_of_any_variable_that_is_not_finite_skips_the_update_of_all(clip_norm):
  # Two dtypes are joined apart.
  variables = [keras.Variable(tf.zeros([2]), dtype=dtype)
               for dtype in ("float32", "float32", "float64")]
  wrapped = wrap_optimizer(K.SGD(1.0), variables, skip_nonfinite=True, clip_norm=clip_norm)
  for bad in range(3):
    wrapped.apply([tf.constant([np.nan if i == bad else 1.0, 1.0], v.dtype)
                   for i, v in enumerate(variables)])
    assert wrapped.nonfinite_updates.numpy() == bad + 1
    for variable in variables:
      np.testing.assert_array_equal(variable, [0.0, 0.0])
