"""Wrapped optimizers against plain Keras ones on the full batch."""

import functools
import inspect
import re

from replicator import Replicator, step_number, wrap_optimizer
from replicator.errors import UsageError
from replicator.strategies.compiled_step import CompiledStep
from replicator.training.checkpoints.saver import Saver
from tests.programs.closeness import close
from tests.programs.refusals import refusal
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import keras
import numpy as np
import pytest
import tensorflow as tf

# ---- As Keras on one replica --------------------------------------------------------------------


OPTIMIZERS = sorted({
    name for name, value in vars(K).items()
    if isinstance(value, type) and "learning_rate" in inspect.signature(value).parameters
} - {"Optimizer", "AdamW"})  # Keras alone rounds the weight decay of AdamW to float32.


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_keras_optimizer_trains_as_alone_on_the_global_batch_or_is_refused(float64, name):
  make = lambda: getattr(K, name)(0.125, name="the_optimizer")
  try:
    trajectory, _ = small.train(Replicator("central_storage", logical_cpus=2), make, 3)
  except UsageError as refusal:
    reasons = {"Nadam": "its own method _backend_update_step", "Muon": "needs Keras 3.13"}
    assert reasons[name] in str(refusal)
  else:
    small.assert_close(trajectory, small.train_plainly(make(), 3))


class Compiled(K.SGD):
  """Compiles its update."""

  @tf.function
  def update_step(self, gradient, variable, learning_rate):
    super().update_step(gradient, variable, learning_rate)


def test_an_update_that_is_compiled_on_its_own_is_the_same(float64, one_or_two):
  trajectory, _ = small.train(one_or_two, lambda: Compiled(0.125, momentum=0.5), 3)
  small.assert_close(trajectory, small.train_plainly(K.SGD(0.125, momentum=0.5), 3))


def by_momentum(gradient, weight, velocity=0.0):
  velocity = 0.9 * velocity - 0.1 * gradient
  return weight + velocity, velocity


def by_adam(gradient, weight, state=(0, 0.0, 0.0)):
  count, mean, square = state
  count, mean = count + 1, 0.9 * mean + 0.1 * gradient
  square = 0.999 * square + 0.001 * gradient ** 2
  mean_scale, square_scale = 1 - 0.9 ** count, 1 - 0.999 ** count
  rate = 0.1 * np.sqrt(square_scale) / mean_scale
  return weight - rate * mean / (np.sqrt(square) + 1e-7), (count, mean, square)


def by_schedule(gradient, weight, count=0):
  return weight - 0.1 * 0.9 ** (count / 3) * gradient, count + 1


@pytest.mark.parametrize("make, update, rtol", [
    (lambda: K.SGD(0.1, momentum=0.9), by_momentum, 1e-15),
    (lambda: K.SGD(K.schedules.ExponentialDecay(0.1, 3, 0.9)), by_schedule, 1e-15),
    (lambda: K.Adam(0.1, beta_1=0.9, beta_2=0.999), by_adam, 1e-13)],
                         ids=["momentum", "schedule", "Adam"])
def test_settings_have_all_digits_in_float64(float64, one_or_two, make, update, rtol):
  with one_or_two.scope():
    variables = small.make_variables()
    wrapped = wrap_optimizer(make(), variables)
  gradients, expected = [w ** 2 for w in small.WEIGHTS], [(w,) for w in small.WEIGHTS]
  for _ in range(5):
    one_or_two.run(lambda: wrapped.apply([tf.constant(g) for g in gradients]) or tf.constant(0))
    expected = [update(g, *state) for g, state in zip(gradients, expected, strict=True)]
  for variable, (weight, _) in zip(variables, expected, strict=True):
    close(variable.numpy(), weight, rtol)


def test_variables_can_be_left_out_of_the_weight_decay(float64):
  def make():
    optimizer = K.SGD(0.125, weight_decay=0.25)
    optimizer.exclude_from_weight_decay(var_names=["offset"])
    return optimizer
  trajectory, _ = small.train(Replicator("mirrored", logical_cpus=2), make, 3)
  small.assert_close(trajectory, small.train_plainly(make(), 3))


def test_gradients_of_an_embedding(one_or_two):
  # Keras' embedding has sparse gradients. 8 examples: each row loses (its count) / (8 x 2).
  with one_or_two.scope():
    layer = keras.layers.Embedding(5, 2)
    layer.build()
    wrapped = wrap_optimizer(K.SGD(1.0), layer.trainable_variables)
  before = layer.embeddings.numpy()
  def step(indices):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(layer(indices))
    wrapped.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    return loss
  one_or_two.run(step, np.array([0, 1, 1, 3, 3, 3, 0, 3], np.int32))
  counts = np.array([[2], [2], [0], [4], [0]])
  np.testing.assert_allclose(before - layer.embeddings.numpy(),
                             np.broadcast_to(counts / 16, [5, 2]), atol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.5, 1e3])
def test_the_mean_over_replicas_is_clipped(two, float64, clip_norm):
  trajectory, _ = small.train(two, lambda: K.SGD(1.0), 1, clip_norm=clip_norm)
  gradients = small.clipped(small.numpy_gradients(), clip_norm)
  small.assert_close(trajectory, [[w - g for w, g in zip(small.WEIGHTS, gradients, strict=True)]])


# ---- None gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_none_leaves_its_variable_and_the_slots_of_it_alone(float64, name):
  # Not even a weight decay or a constraint may touch it.
  make, replicator = small.OPTIMIZERS[name], Replicator("mirrored", logical_cpus=2)
  constraint = keras.constraints.UnitNorm() if name == "AdamW" else None
  with replicator.scope():
    variables = small.make_variables(constraint)
    wrapped = wrap_optimizer(make(), variables)
  plain, optimizer = small.make_variables(constraint), make()
  optimizer.build(plain)

  def step(batch, without):
    gradients = small.gradients_of(variables, batch, step_number())
    wrapped.apply([None if i == without else g for i, g in enumerate(gradients)])
    return tf.constant(0)

  steps = {without: functools.partial(step, without=without) for without in (None, 1)}
  whole = {k: tf.constant(v) for k, v in small.BATCH.items()}
  for number, without in enumerate([None, 1, None, 1, None]):  # A slot that moved would show.
    replicator.run(steps[without], small.BATCH)
    gradients = small.gradients_of(plain, whole, number)
    with small.exact_casts():
      optimizer.apply(*zip(*[(g, v) for i, (g, v) in enumerate(zip(gradients, plain, strict=True))
                             if i != without], strict=True))
  small.assert_close([[v.numpy() for v in variables]], [[v.numpy() for v in plain]])


def test_slots_of_variables_in_another_order_are_not_restored(tmp_path):
  variables = small.make_variables()
  saved = Saver(tmp_path, wrap_optimizer(K.Adam(), variables))
  saved.save(1, {})
  saved.wait()
  with pytest.raises(UsageError, match="keras_"):
    Saver(tmp_path, wrap_optimizer(K.Adam(), variables[::-1])).restore()


def test_a_variable_that_is_frozen_later_stays(two, float64):
  make = lambda: K.AdamW(0.125, weight_decay=0.25)
  with two.scope():
    variables = small.make_variables()
    wrapped = wrap_optimizer(make(), variables, clip_norm=0.5)
  variables[1].trainable = False
  given = [variables, [v for v in variables if v.trainable]]

  def step(batch):
    gradients = small.gradients_of(variables, batch, 0)
    wrapped.apply(gradients, given[0])  # A tape does not know of it.
    wrapped.apply(gradients[::2], given[1])
    wrapped.apply([gradients[0], None, gradients[2]], given[1])  # As of `loss_and_gradients`.
    return tf.constant(0)

  plain, optimizer = [small.make_variables()[i] for i in (0, 2)], make()
  optimizer.build(plain)
  two.run(step, small.BATCH)
  gradients = small.numpy_gradients()[::2]
  with small.exact_casts():
    for _ in range(3):
      optimizer.apply([tf.constant(g) for g in small.clipped(gradients, 0.5)], plain)
  small.assert_close([[v.numpy() for v in variables[::2]]], [[v.numpy() for v in plain]])
  np.testing.assert_array_equal(variables[1].numpy(), small.WEIGHTS[1])
  for variable in variables:
    variable.trainable = False
  two.run(lambda: wrapped.apply([None] * 3) or wrapped.apply([], []) or tf.constant(0))
  assert wrapped.keras_optimizer.iterations.numpy() == 3


# ---- Refusals -----------------------------------------------------------------------------------


def test_keras_options_that_break_replication_are_refused():
  for option, value, remedy in (
      ("clipnorm", 1.0, "set wrap_optimizer's clip_norm"),
      ("global_clipnorm", 1.0, "set wrap_optimizer's clip_norm"),
      ("clipvalue", 1.0, "set wrap_optimizer's clip_norm"),
      ("gradient_accumulation_steps", 2, "fails on several replicas; use replicator.microbatch"),
      ("use_ema", True, "set wrap_optimizer's ema_decay"),
      ("loss_scale_factor", 2.0, "part of wrap_optimizer, under 'mixed_float16'")):
    optimizer = K.Adam(0.1, name="adam", **{option: value})
    said = refusal(wrap_optimizer, optimizer, small.make_variables())
    assert f"adam: the Keras option '{option}'" in said and remedy in said


@pytest.mark.parametrize("variables, message", [
    (lambda: [], "no variables; pass the trainable_variables of a network that is already built"),
    (lambda: [tf.Variable(1.0, name="w")], "'w:0' is a ResourceVariable; make it a keras.Variable"),
    (lambda: small.make_variables()[:1] * 2, "the variable 'kernel' is given twice; list it once")])
def test_an_optimizer_owns_keras_variables_once(variables, message):
  said = refusal(wrap_optimizer, K.SGD(0.1, name="sgd"), variables())
  assert re.match(rf"wrap_optimizer\(sgd\): .*{message}", said)


def test_an_optimizer_owns_its_variables():
  variables = small.make_variables()
  wrapped = wrap_optimizer(K.SGD(0.1), variables)
  gradients = [tf.zeros_like(v.value) for v in variables]
  for others in (small.make_variables(), variables[::-1], variables[:2]):
    with pytest.raises(UsageError, match="the variables differ from the 3 it was wrapped with"):
      wrapped.apply(gradients, others)
  with pytest.raises(UsageError, match="2 gradients for 3 variables"):
    wrapped.apply(gradients[:2])
  with pytest.raises(UsageError, match=r"all 3 gradients are None; .* on kernel or the others"):
    wrapped.apply([None] * 3, variables)


def test_an_update_in_a_branch_of_the_step_is_refused_on_several_replicas(two):
  with two.scope():
    variable = keras.Variable(1.0)
    wrapped = wrap_optimizer(K.SGD(0.1, name="sgd"), [variable])
  update = lambda: wrapped.apply([tf.constant(1.0)])
  loop = lambda: tf.while_loop(lambda i: i < 2, lambda i: update() or [i + 1], [0])
  for call in (lambda: tf.cond(variable > 0, update, lambda: None), loop, tf.function(update)):
    assert "sgd.apply: called inside a tf.cond, tf.while_loop or tf.function of the step" in (
        refusal(two.run, lambda call=call: call() and tf.constant(0)))


def test_an_optimizer_that_scales_losses_or_has_variables_is_refused():
  with pytest.raises(UsageError, match="loss scaling"):
    wrap_optimizer(K.LossScaleOptimizer(K.SGD(0.1)), small.make_variables())
  optimizer = K.Adam(0.1, name="adam")
  wrap_optimizer(optimizer, small.make_variables())
  with pytest.raises(UsageError, match="adam: already has variables; make a new optimizer"):
    wrap_optimizer(optimizer, small.make_variables())


@pytest.mark.skipif("adam_weight_decay" not in inspect.signature(K.Muon).parameters,
                    reason="Muon of this Keras has one weight decay")
def test_a_second_weight_decay_is_refused():
  with pytest.raises(UsageError, match="different values for adam_weight_decay and weight_decay"):
    wrap_optimizer(K.Muon(0.1, weight_decay=0.1, adam_weight_decay=0.0), small.make_variables())


# ---- Updates at some calls -----------------------------------------------------------------------


def test_every_third_call_makes_an_update_on_all_replicas(float64, synchronous):
  with synchronous.scope():
    variables = small.make_variables()
    wrapped = wrap_optimizer(small.adam(0.1), variables, ema_decay=0.5, every=3)

  def step(batch):
    wrapped.apply(small.gradients_of(variables, batch, step_number() // 3))
    return {"calls": wrapped.calls}

  inputs = {name: np.stack([value] * 7) for name, value in small.BATCH.items()}
  CompiledStep(synchronous, step, 7, logs=True)(0, inputs).fetch()
  expected = small.train_plainly(small.adam(0.1), 2)
  small.assert_close([[v.numpy() for v in variables]], expected[-1:])
  small.assert_close([small.averages_of(wrapped)], [small.moving_average(expected, 0.5)])
  assert wrapped.keras_optimizer.iterations.numpy() == 2 and wrapped.calls.numpy() == 7
  with pytest.raises(UsageError, match=r"wrap_optimizer.every = 0: must be at least 1"):
    wrap_optimizer(K.SGD(0.1), variables, every=0)


@pytest.mark.parametrize("setting", [{"ema_every": 2}, {"ema_start": 1}])
def test_averages_that_nobody_keeps_have_no_settings(setting):
  with pytest.raises(UsageError, match="ema_start and ema_every have no effect without ema_decay"):
    wrap_optimizer(K.SGD(0.1), small.make_variables(), **setting)


# ---- Gradients that are not finite ---------------------------------------------------------------


def check_that_the_update_is_skipped(replicator: Replicator, **options) -> None:
  variables, wrapped, nonfinite = small.train_with_bad_examples(
      replicator, skip_nonfinite=True, **options)
  expected = small.train_plainly(small.adam(0.1), 3, keras.constraints.MaxNorm(3.0),
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
  variables, wrapped, nonfinite = small.train_with_bad_examples(
      Replicator("mirrored", logical_cpus=2))
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


def test_calls_that_make_no_update_count_none_that_is_not_finite():
  wrapped = wrap_optimizer(K.SGD(1.0), [keras.Variable(0.0)], every=2)
  for bad, count in ((np.nan, 0), (1.0, 0), (np.nan, 0), (np.nan, 1)):
    wrapped.apply([tf.constant(bad)])
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
