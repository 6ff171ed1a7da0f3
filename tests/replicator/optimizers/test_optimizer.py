"""Wrapped optimizers against plain Keras ones on the full batch, NumPy and closed forms."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from replicator import LinearDecay, Replicator, microbatch, step_number, wrap_optimizer
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.errors import UsageError
from replicator.optimizers.loss_scale import LossScale
from replicator.training.training_function import TrainingFunction

RNG = np.random.default_rng(0)
BATCH = {"x": RNG.normal(size=[8, 3]), "y": RNG.normal(size=[8, 2])}
WEIGHTS = [RNG.normal(size=[3, 2]), RNG.normal(size=[2]), RNG.normal(size=[2])]


def make_variables(constraint=None) -> list[keras.Variable]:
  """Kernel, offset and scale of a small network."""
  names = ("kernel", "offset", "scale")
  variables = [keras.Variable(value, dtype=keras.config.floatx(), name=name)
               for name, value in zip(names, WEIGHTS, strict=True)]
  for variable in variables:
    variable.constraint = constraint
  return variables


def loss_of(variables, batch, step) -> tf.Tensor:
  """A loss whose gradients differ at every step."""
  kernel, offset, scale = (v.value for v in variables)
  prediction = tf.sin(tf.matmul(batch["x"], kernel) + offset) * scale
  error = prediction * (1.0 + tf.cast(step, prediction.dtype)) - batch["y"]
  return tf.reduce_mean(tf.reduce_sum(error ** 2, 1))


def gradients_of(variables, batch, step) -> list[tf.Tensor]:
  with tf.GradientTape() as tape:
    loss = loss_of(variables, batch, step)
  return tape.gradient(loss, [v.value for v in variables])


def train_plainly(optimizer: keras.optimizers.Optimizer, steps: int, constraint=None,
                  first_step: int = 0) -> list[list[np.ndarray]]:
  """The variables after each step of Keras alone on the full batch."""
  variables = make_variables(constraint)
  optimizer.build(variables)
  trajectory = []
  for step in range(first_step, steps):
    batch = {name: tf.constant(value, variables[0].dtype) for name, value in BATCH.items()}
    optimizer.apply(gradients_of(variables, batch, step), variables)
    trajectory.append([v.numpy() for v in variables])
  return trajectory


def train(replicator: Replicator, optimizer, steps: int, constraint=None, **options):
  """The variables after each step, and the wrapped optimizer."""
  with replicator.scope():
    variables = make_variables(constraint)
    wrapped = wrap_optimizer(optimizer(), variables, **options)

  def step(batch):
    wrapped.apply(gradients_of(variables, batch, step_number()), variables)
    return tf.stack([tf.reduce_sum(v.value) for v in variables])

  trajectory = []
  dtype = keras.config.floatx()
  for _ in range(steps):
    sums = replicator.run(step, {name: value.astype(dtype) for name, value in BATCH.items()})
    for other in sums[1:]:  # All replicas hold the same variables.
      np.testing.assert_array_equal(other, sums[0])
    trajectory.append([v.numpy() for v in variables])
  return trajectory, wrapped


def assert_close(actual, expected, rtol=1e-11):
  for values, references in zip(actual, expected, strict=True):
    for value, reference in zip(values, references, strict=True):
      np.testing.assert_allclose(value, reference, rtol=rtol)


# ---- As Keras on one replica --------------------------------------------------------------------

K = keras.optimizers
OPTIMIZERS = {
    "SGD": lambda: K.SGD(0.1),
    "momentum": lambda: K.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": lambda: K.Adam(LinearDecay(0.1, 5), beta_1=0.0, beta_2=0.9),
    # Binary fractions, which survive Keras' conversion to float32.
    "AdamW": lambda: K.AdamW(0.125, weight_decay=0.25),
    "RMSprop": lambda: K.RMSprop(0.1, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_keras_on_the_global_batch(float64, synchronous, name):
  make = OPTIMIZERS[name]
  trajectory, wrapped = train(synchronous, make, 4)
  assert_close(trajectory, train_plainly(make(), 4))
  assert wrapped.keras_optimizer.iterations.numpy() == 4


def test_updates_in_float32(synchronous):
  make = OPTIMIZERS["Adam"]
  trajectory, _ = train(synchronous, make, 3)
  assert trajectory[0][0].dtype == np.float32
  assert_close(trajectory, train_plainly(make(), 3), rtol=1e-5)


def test_updates_under_xla(float64):
  make = OPTIMIZERS["Adam"]
  trajectory, wrapped = train(Replicator("one_device", jit_compile=True), make, 3, ema_decay=0.5)
  assert_close(trajectory, train_plainly(make(), 3))
  assert_close([averages_of(wrapped)], [moving_average(trajectory, 0.5)])


def test_updates_in_eager_steps(float64, run_eagerly):
  make = OPTIMIZERS["momentum"]
  expected = train_plainly(make(), 2)
  run_eagerly()
  assert_close(train(Replicator("mirrored", logical_cpus=2), make, 2)[0], expected)


def test_two_updates_in_one_step_are_two_updates(float64, synchronous):
  make = OPTIMIZERS["Adam"]
  with synchronous.scope():
    variables = make_variables()
    wrapped = wrap_optimizer(make(), variables)

  def step(batch):
    for number in range(2):
      wrapped.apply(gradients_of(variables, batch, number), variables)
    return tf.constant(0)

  synchronous.run(step, BATCH)
  assert_close([[v.numpy() for v in variables]], train_plainly(make(), 2)[1:])
  assert wrapped.keras_optimizer.iterations.numpy() == 2


OTHERS = sorted({
    name for name, value in vars(K).items()
    if isinstance(value, type) and "learning_rate" in inspect.signature(value).parameters
} - {"Optimizer", *OPTIMIZERS})


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_keras_optimizer_trains_as_it_does_alone_or_is_refused(float64, name):
  make = lambda: getattr(K, name)(0.125, name="the_optimizer")
  try:
    trajectory, _ = train(Replicator("central_storage", logical_cpus=2), make, 3)
  except UsageError as refusal:
    assert str(refusal).startswith("the_optimizer: ")
  else:  # Keras rounds a weight decay to float32.
    assert_close(trajectory, train_plainly(make(), 3), rtol=1e-8)


def test_variables_can_be_left_out_of_the_weight_decay(float64, synchronous):
  def make():
    optimizer = K.SGD(0.125, weight_decay=0.25)
    optimizer.exclude_from_weight_decay(var_names=["offset"])
    return optimizer
  assert_close(train(synchronous, make, 3)[0], train_plainly(make(), 3))


def test_constraints_hold_after_every_update(float64, synchronous):
  make, constraint = OPTIMIZERS["momentum"], keras.constraints.NonNeg()
  trajectory, _ = train(synchronous, make, 3, constraint)
  assert_close(trajectory, train_plainly(make(), 3, constraint))
  assert min(value.min() for value in trajectory[-1]) == 0.0  # It did something.


def test_gradients_of_an_embedding(synchronous):
  # Keras' embedding has sparse gradients. 8 examples: each row loses (its count) / (8 x 2).
  with synchronous.scope():
    layer = keras.layers.Embedding(5, 2)
    layer.build()
    wrapped = wrap_optimizer(K.SGD(1.0), layer.trainable_variables)
  before = layer.embeddings.numpy()
  def step(indices):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(layer(indices))
    wrapped.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    return loss
  synchronous.run(step, np.array([0, 1, 1, 3, 3, 3, 0, 3], np.int32))
  counts = np.array([[2], [2], [0], [4], [0]])
  np.testing.assert_allclose(before - layer.embeddings.numpy(),
                             np.broadcast_to(counts / 16, [5, 2]), atol=1e-6)


# ---- None gradients -----------------------------------------------------------------------------


def test_none_leaves_its_variable_alone(float64, synchronous):
  make = lambda: K.AdamW(0.125, weight_decay=0.25)  # Not even weight decay may touch it.
  with synchronous.scope():
    variables = make_variables(keras.constraints.UnitNorm())
    wrapped = wrap_optimizer(make(), variables)

  def step(batch):
    kernel, _, scale = gradients_of(variables, batch, step_number())
    wrapped.apply([kernel, None, scale])
    return tf.constant(0)

  plain, optimizer = make_variables(keras.constraints.UnitNorm()), make()
  optimizer.build(plain)
  for number in range(2):
    synchronous.run(step, BATCH)
    kernel, _, scale = gradients_of(plain, {k: tf.constant(v) for k, v in BATCH.items()}, number)
    optimizer.apply([kernel, scale], [plain[0], plain[2]])
  assert_close([[v.numpy() for v in variables]], [[v.numpy() for v in plain]])
  np.testing.assert_array_equal(variables[1].numpy(), WEIGHTS[1])


@pytest.mark.parametrize("name", ["momentum", "Adam", "RMSprop"])
def test_none_leaves_the_slots_of_its_variable_alone(float64, name):
  make, replicator = OPTIMIZERS[name], Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    variables = make_variables()
    wrapped = wrap_optimizer(make(), variables)
  plain, optimizer = make_variables(), make()
  optimizer.build(plain)
  whole = {k: tf.constant(v) for k, v in BATCH.items()}
  for number, without in enumerate([None, 1, None, 0, None]):  # A slot that moved would show.
    def step(batch, number=number, without=without):
      gradients = gradients_of(variables, batch, number)
      wrapped.apply([None if i == without else g for i, g in enumerate(gradients)])
      return tf.constant(0)
    replicator.run(step, BATCH)
    gradients = gradients_of(plain, whole, number)
    optimizer.apply(*zip(*[(g, v) for i, (g, v) in enumerate(zip(gradients, plain, strict=True))
                           if i != without], strict=True))
  assert_close([[v.numpy() for v in variables]], [[v.numpy() for v in plain]])


def test_slots_of_variables_in_another_order_are_not_restored(tmp_path):
  variables = make_variables()
  saved = Checkpoints(tmp_path, wrap_optimizer(K.Adam(), variables))
  saved.save(1, {})
  saved.wait()
  with pytest.raises(UsageError, match="keras_"):
    Checkpoints(tmp_path, wrap_optimizer(K.Adam(), variables[::-1])).restore()


def test_a_variable_that_is_frozen_later_stays(float64):
  make = lambda: K.AdamW(0.125, weight_decay=0.25)
  replicator = Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    variables = make_variables()
    wrapped = wrap_optimizer(make(), variables, clip_norm=0.5)
  variables[1].trainable = False
  given = [variables, [v for v in variables if v.trainable]]

  def step(batch):
    gradients = gradients_of(variables, batch, 0)
    wrapped.apply(gradients, given[0])  # A tape does not know of it.
    wrapped.apply(gradients[::2], given[1])
    wrapped.apply([gradients[0], None, gradients[2]], given[1])  # As of `loss_and_gradients`.
    return tf.constant(0)

  plain, optimizer = [make_variables()[i] for i in (0, 2)], make()
  optimizer.build(plain)
  replicator.run(step, BATCH)
  gradients = numpy_gradients(slice(None))[::2]
  for _ in range(3):
    optimizer.apply([tf.constant(g) for g in clipped(gradients, 0.5)], plain)
  assert_close([[v.numpy() for v in variables[::2]]], [[v.numpy() for v in plain]])
  np.testing.assert_array_equal(variables[1].numpy(), WEIGHTS[1])
  for variable in variables:
    variable.trainable = False
  replicator.run(lambda: wrapped.apply([None] * 3) or wrapped.apply([], []) or tf.constant(0))
  assert wrapped.keras_optimizer.iterations.numpy() == 3


# ---- Clipping -----------------------------------------------------------------------------------


def numpy_gradients(rows: slice) -> list[np.ndarray]:
  part = {name: tf.constant(value[rows]) for name, value in BATCH.items()}
  return [g.numpy() for g in gradients_of(make_variables(), part, 0)]


def clipped(gradients: list[np.ndarray], clip_norm: float) -> list[np.ndarray]:
  """Pascanu et al. 2013: g min(1, c / |g|), with the norm of all gradients together."""
  norm = np.sqrt(sum(np.sum(g ** 2) for g in gradients))
  return [g * min(1.0, clip_norm / norm) for g in gradients]


@pytest.mark.parametrize("clip_norm", [0.5, 1e3])
def test_the_mean_over_replicas_is_clipped(float64, synchronous, clip_norm):
  trajectory, _ = train(synchronous, lambda: K.SGD(1.0), 1, clip_norm=clip_norm)
  gradients = clipped(numpy_gradients(slice(None)), clip_norm)
  assert_close(trajectory, [[w - g for w, g in zip(WEIGHTS, gradients, strict=True)]])


def test_clipping_each_replica_first_would_be_another_update(float64):
  halves = [clipped(numpy_gradients(rows), 0.5) for rows in (slice(0, 4), slice(4, 8))]
  mean_of_clipped = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
  clipped_mean = clipped(numpy_gradients(slice(None)), 0.5)
  differences = [np.abs(a - b).max() for a, b in zip(mean_of_clipped, clipped_mean, strict=True)]
  assert max(differences) > 0.01


@pytest.mark.parametrize("each", [True, False])
def test_networks_are_clipped_together_or_each_by_its_own_norm(float64, each):
  # Also that a dict is no order: networks have the order of their names.
  replicator = Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    kernel, offset, scale = make_variables()
    networks = {"mixer": [kernel, offset], "last": [scale]}
    wrapped = wrap_optimizer(K.SGD(1.0), networks, clip_norm=0.5, clip_each_network=each)

  def step(batch):
    with tf.GradientTape() as tape:
      loss = loss_of([kernel, offset, scale], batch, 0)
    wrapped.apply(tape.gradient(loss, networks), networks)
    return loss

  replicator.run(step, BATCH)
  gradients = numpy_gradients(slice(None))
  expected = ([*clipped(gradients[:2], 0.5), *clipped(gradients[2:], 0.5)] if each
              else clipped(gradients, 0.5))
  assert_close([[v.numpy() for v in (kernel, offset, scale)]],
               [[w - g for w, g in zip(WEIGHTS, expected, strict=True)]])


# ---- Gradients that are not finite --------------------------------------------------------------


def train_with_bad_examples(replicator: Replicator, **options):
  """4 steps in one call, the first and the last with an infinite example on one replica."""
  with replicator.scope():
    variables = make_variables(keras.constraints.MaxNorm(3.0))
    wrapped = wrap_optimizer(OPTIMIZERS["Adam"](), variables, ema_decay=0.5, ema_start=1, **options)

  def step(batch):
    wrapped.apply(gradients_of(variables, batch, step_number()))
    return {"nonfinite": wrapped.nonfinite_updates}

  inputs = {name: np.stack([value] * 4) for name, value in BATCH.items()}
  inputs["x"][[0, 3], 0, 0] = np.inf
  logged, _ = TrainingFunction(replicator, step, 4)(0, inputs).fetch()
  return variables, wrapped, logged["nonfinite"]


def check_that_the_update_is_skipped(replicator: Replicator, **options) -> None:
  variables, wrapped, nonfinite = train_with_bad_examples(
      replicator, skip_nonfinite=True, **options)
  expected = train_plainly(OPTIMIZERS["Adam"](), 3, keras.constraints.MaxNorm(3.0), first_step=1)
  np.testing.assert_array_equal(nonfinite, [1, 1, 1, 2])
  for i in range(replicator.num_replicas):  # Each replica's own copy.
    copies = [replicator.local_results(v.value)[i].numpy() for v in variables]
    assert_close([copies], expected[-1:])
  assert_close([averages_of(wrapped)], [moving_average(expected, 0.5, start=1)])
  assert wrapped.keras_optimizer.iterations.numpy() == 2


def test_an_update_that_is_not_finite_is_skipped_on_all_replicas(float64, synchronous):
  check_that_the_update_is_skipped(synchronous)


def test_an_update_whose_norm_is_not_finite_is_skipped_under_xla(float64):
  check_that_the_update_is_skipped(Replicator("one_device", jit_compile=True), clip_norm=1e3)


def test_an_update_that_is_not_finite_is_skipped_in_eager_steps(float64, run_eagerly):
  run_eagerly()
  check_that_the_update_is_skipped(Replicator("mirrored", logical_cpus=2))


def test_by_default_an_update_that_is_not_finite_is_made_and_counted(float64):
  variables, wrapped, nonfinite = train_with_bad_examples(Replicator("mirrored", logical_cpus=2))
  np.testing.assert_array_equal(nonfinite, [1, 2, 3, 4])
  assert np.isnan(variables[0].numpy()).any()
  assert wrapped.keras_optimizer.iterations.numpy() == 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bad, count", [(6e4, 0), (np.inf, 1), (-np.inf, 1), (np.nan, 1)])
def test_every_number_that_is_not_finite_counts(dtype, bad, count):
  values = tf.cast(tf.constant([6e4, 6e4, bad, -6e4]), dtype)
  variables = [keras.Variable(tf.zeros([4]), dtype=dtype), keras.Variable(0.0, dtype="float32")]
  wrapped = wrap_optimizer(K.SGD(1.0), variables)
  wrapped.apply([values, tf.constant(1.0)])
  assert wrapped.nonfinite_updates.numpy() == count


@pytest.mark.parametrize("bad", ["first", "second", "third"])
@pytest.mark.parametrize("clipping", [
    {}, {"clip_norm": 1.0}, {"clip_norm": 1.0, "clip_each_network": True}],
    ids=["plain", "together", "each"])
def test_a_gradient_of_any_network_that_is_not_finite_skips_the_update_of_all(bad, clipping):
  names = ("first", "second", "third")
  networks = {name: [keras.Variable(tf.zeros([2]))] for name in names}
  wrapped = wrap_optimizer(K.SGD(1.0), networks, skip_nonfinite=True, **clipping)
  wrapped.apply({name: [tf.constant([np.nan if name == bad else 1.0, 1.0])] for name in names})
  assert wrapped.nonfinite_updates.numpy() == 1
  for (variable,) in networks.values():
    np.testing.assert_array_equal(variable, [0.0, 0.0])


# ---- Loss scaling -------------------------------------------------------------------------------


def test_the_scale_follows_the_gradients():
  # Up after 2,000 updates in a row, down at one that is not finite; from 1 to 2^24.
  def after(finite: bool, factor: float, finite_updates: int) -> tuple[float, int]:
    scale.factor.assign(factor)
    scale.finite_updates.assign(finite_updates)
    scale.adapt(tf.constant(finite))
    return float(scale.factor.numpy()), int(scale.finite_updates.numpy())

  scale = LossScale()
  assert (scale.factor.numpy(), scale.finite_updates.numpy()) == (2.0 ** 15, 0)
  assert after(True, 2.0 ** 15, 0) == (2.0 ** 15, 1)
  assert after(True, 2.0 ** 15, 1998) == (2.0 ** 15, 1999)
  assert after(True, 2.0 ** 15, 1999) == (2.0 ** 16, 0)
  assert after(False, 2.0 ** 15, 1999) == (2.0 ** 14, 0)
  assert after(False, 1.0, 5) == (1.0, 0)
  assert after(True, 2.0 ** 24, 1999) == (2.0 ** 24, 0)


@pytest.fixture
def mixed_float16(set_precision):
  set_precision("mixed_float16")


@pytest.mark.parametrize("strategy, devices, xla", [
    ("mirrored", 2, False), ("central_storage", 2, False), ("one_device", None, True)])
def test_float16_layers_train_with_small_gradients_and_after_large_ones(
    mixed_float16, strategy, devices, xla):
  # dloss/dw = mean(x) passes through float16, where 1e-8 is zero. A batch whose scaled gradient is
  # infinite there is skipped and halves the scale. In 2 micro-batches of each replica.
  replicator = Replicator(strategy, logical_cpus=devices, jit_compile=xla)
  with replicator.scope():
    weight = keras.Variable([1.0], dtype="float32")
    wrapped = wrap_optimizer(K.SGD(1.0), [weight])

  def loss_and_gradients(x):
    with tf.GradientTape() as tape:
      half = tf.cast(weight.value, tf.float16)
      loss = tf.reduce_mean(tf.cast(half, tf.float32) * x)
      scaled = wrapped.scale_loss(loss)
    return loss, tape.gradient(scaled, [weight])

  def step(x):
    loss, gradients = microbatch(loss_and_gradients, x, n=2)
    wrapped.apply(gradients, [weight])
    return {"loss": loss, "weight": weight.value[0], "scale": wrapped.loss_scale.factor}

  means = np.array([1e-8, 3.0, 1e-8, 1.0])
  x = np.stack([m * np.array([0.5, 1.5, 1.0, 1.0]) for m in means]).astype(np.float32)
  logged, _ = TrainingFunction(replicator, step, 4)(0, x).fetch()
  np.testing.assert_array_equal(logged["scale"], np.float32([2, 1, 1, 1]) * 2.0 ** 14)
  np.testing.assert_allclose(logged["weight"], 1 - np.cumsum([1e-8, 0, 1e-8, 1.0]), rtol=1e-3,
                             atol=1e-7)
  assert wrapped.nonfinite_updates.numpy() == 1
  weight.assign([0.0])  # Near zero there is room for a small update.
  TrainingFunction(replicator, step, 1)(4, x[:1]).fetch()
  np.testing.assert_allclose(weight.numpy(), -1e-8, rtol=1e-3)


def test_a_loss_that_float16_could_not_hold_is_scaled_in_float32(mixed_float16):
  wrapped = wrap_optimizer(K.SGD(1.0), make_variables())
  scaled = wrapped.scale_loss(tf.constant(3.0, tf.float16))
  assert scaled.dtype == tf.float32
  assert float(scaled) == 3 * 2.0 ** 15


def test_float16_gradients_of_an_unscaled_loss_are_refused(mixed_float16):
  replicator = Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    variables = make_variables()
    wrapped = wrap_optimizer(K.SGD(1.0, name="the_sgd"), variables)
  refusal = r"the_sgd.apply: .*'mixed_float16'.* write.* optimizer.scale_loss\(loss\)"

  def step(losses_scaled):
    for _ in range(losses_scaled):
      wrapped.scale_loss(tf.constant(1.0))
    for _ in range(2):
      wrapped.apply([tf.zeros_like(v.value) for v in variables])
    return tf.constant(0)

  for losses_scaled in (0, 2):  # Each update needs its own: the scale changes with it.
    with pytest.raises(UsageError, match=refusal):
      replicator.run(lambda n=losses_scaled: step(n))


@pytest.mark.parametrize("precision", ["float32", "float64", "mixed_bfloat16"])
def test_other_precisions_scale_nothing(set_precision, precision):
  set_precision(precision)
  wrapped = wrap_optimizer(K.SGD(1.0), make_variables())
  loss = tf.constant(1.0)
  assert wrapped.scale_loss(loss) is loss
  assert wrapped.loss_scale is None


def test_a_restart_keeps_scale_counters_and_averages(mixed_float16, tmp_path):
  def make_step(value: float) -> tf.Module:
    step = tf.Module()
    step.optimizer = wrap_optimizer(K.SGD(1.0), make_variables(), ema_decay=0.5)
    for i, variable in enumerate(held(step)):
      variable.assign(tf.fill(variable.shape, tf.cast(value + i, variable.dtype)))
    return step

  def held(step) -> list[keras.Variable]:
    optimizer = step.optimizer
    return [optimizer.loss_scale.factor, optimizer.loss_scale.finite_updates,
            optimizer.nonfinite_updates, *optimizer.averages]

  saved, resumed = make_step(7), make_step(0)
  checkpoints = Checkpoints(tmp_path, saved)
  checkpoints.save(1, {})
  checkpoints.wait()
  Checkpoints(tmp_path, resumed).restore()
  assert_close([[v.numpy() for v in held(resumed)]], [[v.numpy() for v in held(saved)]])


# ---- Averaged weights ---------------------------------------------------------------------------


def averages_of(wrapped) -> list[np.ndarray]:
  return [average.numpy() for average in wrapped.averages]


def moving_average(trajectory, decay: float, start: int = 0) -> list[np.ndarray]:
  """sum_k (1 - d) d^(n - k) w_k over the n updates after `start`, and d^n w_start."""
  points = [WEIGHTS, *trajectory][start:]
  n = len(points) - 1
  factors = [decay ** n] + [(1 - decay) * decay ** (n - k) for k in range(1, n + 1)]
  return [sum(f * point[i] for f, point in zip(factors, points, strict=True)) for i in range(3)]


@pytest.mark.parametrize("decay, start", [(0.99, 0), (0.9, 2)])
def test_averages_are_the_closed_form(float64, synchronous, decay, start):
  trajectory, wrapped = train(
      synchronous, OPTIMIZERS["momentum"], 5, ema_decay=decay, ema_start=start)
  assert_close([averages_of(wrapped)], [moving_average(trajectory, decay, start)])


def test_until_the_start_the_average_is_a_copy():
  trajectory, wrapped = train(Replicator("mirrored", logical_cpus=2), OPTIMIZERS["momentum"], 3,
                              ema_decay=0.9, ema_start=3)
  for average, value in zip(averages_of(wrapped), trajectory[-1], strict=True):
    np.testing.assert_array_equal(average, value)


def test_a_target_network_is_copied_once_in_so_many_updates(float64, synchronous):
  trajectory, wrapped = train(synchronous, OPTIMIZERS["momentum"], 5, ema_decay=0.0, ema_every=2)
  for average, value in zip(averages_of(wrapped), trajectory[3], strict=True):
    np.testing.assert_array_equal(average, value)


def test_an_average_can_move_once_in_so_many_updates(float64, synchronous):
  trajectory, wrapped = train(synchronous, OPTIMIZERS["momentum"], 5, ema_decay=0.9, ema_every=2)
  points = [WEIGHTS, trajectory[1], trajectory[3]]
  expected = [0.81 * a + 0.09 * b + 0.1 * c for a, b, c in zip(*points, strict=True)]
  assert_close([averages_of(wrapped)], [expected])


def test_the_average_begins_as_the_initial_weights(synchronous):
  _, wrapped = train(synchronous, OPTIMIZERS["SGD"], 0, ema_decay=0.9)
  for average, value in zip(averages_of(wrapped), WEIGHTS, strict=True):
    np.testing.assert_array_equal(average, value.astype(np.float32))
  assert not any(average.trainable for average in wrapped.averages)


def test_networks_compute_with_averaged_weights_only_inside(float64, synchronous):
  kernel, x = np.array([[1.0], [2.0]]), RNG.normal(size=[4, 2])
  with synchronous.scope():
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    wrapped = wrap_optimizer(K.SGD(1.0), layer.trainable_variables, ema_decay=0.75)
  layer.kernel.assign(kernel)
  wrapped.averages[0].assign(kernel)
  synchronous.run(lambda: wrapped.apply([tf.ones([2, 1], tf.float64)]) or tf.constant(0))
  average = kernel - 0.25  # 0.75 kernel + 0.25 (kernel - 1)

  def averaged(x):
    with wrapped.averaged_weights():
      return layer(x)

  np.testing.assert_allclose(averaged(x), x @ average)
  np.testing.assert_allclose(tf.function(averaged, autograph=False)(x), x @ average)
  np.testing.assert_allclose(np.concatenate(synchronous.run(averaged, x)), x @ average)
  np.testing.assert_allclose(layer(x), x @ (kernel - 1.0))
  np.testing.assert_array_equal(layer.kernel.numpy(), kernel - 1.0)


def test_without_ema_there_are_no_averages():
  wrapped = wrap_optimizer(K.SGD(0.1, name="sgd"), make_variables())
  assert wrapped.averages == []
  with pytest.raises(UsageError, match="sgd keeps no averages; set wrap_optimizer's ema_decay"), \
      wrapped.averaged_weights():
    pass


# ---- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("option, remedy", [
    ({"clipnorm": 1.0}, "set wrap_optimizer's clip_norm"),
    ({"global_clipnorm": 1.0}, "set wrap_optimizer's clip_norm"),
    ({"clipvalue": 1.0}, "set wrap_optimizer's clip_norm"),
    ({"gradient_accumulation_steps": 2}, "fails on several replicas; use replicator.microbatch"),
    ({"use_ema": True}, "set wrap_optimizer's ema_decay"),
    ({"loss_scale_factor": 2.0}, "part of wrap_optimizer, under 'mixed_float16'"),
], ids=str)
def test_keras_options_that_break_replication_are_refused(option, remedy):
  with pytest.raises(UsageError) as refusal:
    wrap_optimizer(K.Adam(0.1, name="adam", **option), make_variables())
  assert f"adam: the Keras option '{next(iter(option))}'" in str(refusal.value)
  assert remedy in str(refusal.value)


def test_an_optimizer_needs_variables():
  with pytest.raises(UsageError, match="no variables; pass the trainable_variables of a network"):
    wrap_optimizer(K.SGD(0.1), [])


@pytest.mark.parametrize("variables, message", [
    (lambda: {"encoder": make_variables(), "generator": []}, "no variables; pass the trainable_v"),
    (lambda: [tf.Variable(1.0, name="w")], "'w:0' is a ResourceVariable; make it a keras.Variable"),
    (lambda: {"a": make_variables(), "b": [tf.constant(1.0)]}, "make it a keras.Variable"),
    (lambda: make_variables()[:1] * 2, "the variable 'kernel' is given twice; list it once")])
def test_an_optimizer_owns_keras_variables_once(variables, message):
  with pytest.raises(UsageError, match=message) as refusal:
    wrap_optimizer(K.SGD(0.1, name="sgd"), variables())
  assert str(refusal.value).startswith("wrap_optimizer(sgd): ")


@pytest.mark.parametrize("options", [
    {"variables": make_variables, "clip_norm": 1.0},
    {"variables": lambda: {"generator": make_variables()}}], ids=["flat", "no norm"])
def test_clipping_each_network_needs_networks_and_a_norm(options):
  variables = options.pop("variables")()
  with pytest.raises(UsageError, match=r"needs a clip_norm, and variables in a dict of networks"):
    wrap_optimizer(K.SGD(0.1), variables, clip_each_network=True, **options)


def test_gradients_have_the_nest_of_the_variables():
  variables = make_variables()
  wrapped = wrap_optimizer(K.SGD(0.1), {"a": variables[:1], "b": variables[1:]})
  gradients = [tf.zeros_like(v.value) for v in variables]
  with pytest.raises(UsageError, match=r"3 gradients for {'a': 1, 'b': 2} variables"):
    wrapped.apply(gradients)
  with pytest.raises(UsageError, match=r"given other variables than the {'a': 1, 'b': 2} it was"):
    wrapped.apply(gradients, variables)


def test_an_optimizer_owns_its_variables():
  variables = make_variables()
  wrapped = wrap_optimizer(K.SGD(0.1), variables)
  gradients = [tf.zeros_like(v.value) for v in variables]
  for others in (make_variables(), variables[::-1], variables[:2]):
    with pytest.raises(UsageError, match="given other variables than the 3 it was wrapped with"):
      wrapped.apply(gradients, others)
  with pytest.raises(UsageError, match="2 gradients for 3 variables"):
    wrapped.apply(gradients[:2])
  with pytest.raises(UsageError, match="all 3 gradients are None; the loss does not depend on ker"):
    wrapped.apply([None] * 3, variables)


def test_an_optimizer_that_scales_losses_is_refused():
  with pytest.raises(UsageError, match="loss scaling"):
    wrap_optimizer(K.LossScaleOptimizer(K.SGD(0.1)), make_variables())


def test_a_keras_optimizer_serves_one_network():
  optimizer = K.Adam(0.1, name="adam")
  wrap_optimizer(optimizer, make_variables())
  with pytest.raises(UsageError, match="adam"):  # Keras would find no slots at the first step.
    wrap_optimizer(optimizer, make_variables())


# ---- LinearDecay --------------------------------------------------------------------------------


@pytest.mark.parametrize("start, values", [
    (0, {0: 0.4, 1: 0.36, 5: 0.2, 9: 0.04, 10: 0.0, 11: 0.0}),
    (6, {0: 0.4, 6: 0.4, 7: 0.3, 9: 0.1, 10: 0.0, 100: 0.0})])
def test_linear_decay(float64, start, values):
  schedule = LinearDecay(0.4, updates=10, start=start)
  copy = LinearDecay.from_config(schedule.get_config())
  for step, expected in values.items():
    for s in (schedule, copy):
      np.testing.assert_allclose(s(tf.constant(step, tf.int64)), expected, atol=1e-15)


def test_linear_decay_rises_first(float64):
  schedule = LinearDecay(0.4, updates=10, start=6, warmup=4)
  for step, expected in {0: 0.1, 1: 0.2, 3: 0.4, 6: 0.4, 9: 0.1, 10: 0.0}.items():
    assert float(schedule(step)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("times", [{"updates": 5, "start": 5},
                                   {"updates": 9, "start": 2, "warmup": 3}])
def test_the_times_of_linear_decay_must_follow_each_other(times):
  with pytest.raises(UsageError, match="must follow each other in this order"):
    LinearDecay(0.1, **times)


def test_the_schedule_counts_the_updates_of_its_own_optimizer(float64):
  trajectory, _ = train(Replicator("mirrored", logical_cpus=2),
                        lambda: K.SGD(LinearDecay(0.1, updates=2)), 3)
  gradient = numpy_gradients(slice(None))[1]
  np.testing.assert_allclose(trajectory[0][1], WEIGHTS[1] - 0.1 * gradient)
  assert not np.array_equal(trajectory[1][1], trajectory[0][1])
  np.testing.assert_array_equal(trajectory[2][1], trajectory[1][1])
