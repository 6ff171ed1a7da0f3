"""GlobalBatchNorm and standing statistics against NumPy in float64 and closed forms."""

import replicator as library
from replicator import GlobalBatchNorm, Replicator, SpectralNorm, UsageError, all_mean, microbatch
from replicator.step import context
from replicator.step.layers.batch_norm import batch_normalized
from tests.programs.closeness import close, nests_close

import keras
import numpy as np
import pytest
import tensorflow as tf

EPSILON, MOMENTUM = 1e-5, 0.9  # The layer's defaults.
RNG = np.random.default_rng(0)
GAMMA, BETA = RNG.normal(size=[2, 3])
_STATE = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
  RNG.bit_generator.state = _STATE


def batch_of(shape, mean=0.5, std=2.0, dtype=np.float64) -> dict[str, np.ndarray]:
  """Inputs x and the weights t of a loss, both of `shape`."""
  return {"x": RNG.normal(mean, std, shape).astype(dtype),
          "t": RNG.normal(size=shape).astype(dtype)}


def reference(x: np.ndarray, t: np.ndarray) -> dict[str, np.ndarray]:
  """Ioffe and Szegedy 2015, the transform and its gradients, for the loss mean_n sum(y t)."""
  shape, n = x.shape, x.shape[0]
  x, t = (a.astype(np.float64).reshape(-1, shape[-1]) for a in (x, t))
  mean, variance = x.mean(0), x.var(0)
  std = np.sqrt(variance + EPSILON)
  normalized = (x - mean) / std
  dy = t / n
  dx = GAMMA / std * (dy - dy.mean(0) - normalized * (dy * normalized).mean(0))
  return {"y": (GAMMA * normalized + BETA).reshape(shape), "dx": dx.reshape(shape),
          "dgamma": (dy * normalized).sum(0), "dbeta": dy.sum(0),
          "moving_mean": (1 - MOMENTUM) * mean,
          "moving_variance": MOMENTUM + (1 - MOMENTUM) * variance}


def build(replicator: Replicator, **options) -> GlobalBatchNorm:
  with replicator.scope():
    layer = GlobalBatchNorm(**options)
    layer.build((None, 3))
  layer.gamma.assign(GAMMA)
  layer.beta.assign(BETA)
  return layer


def train_once(replicator: Replicator, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The same quantities from one training step."""
  layer = build(replicator)

  def step(batch):
    x = batch["x"]
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = layer(x, training=True)
      loss = tf.reduce_sum(y * batch["t"]) / x.shape[0]
    dx, *dw = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
    # A replica's loss is one part of the mean over replicas.
    return {"y": y, "dx": dx / replicator.num_replicas, "dw": all_mean(dw),
            "moving": tf.stack([layer.moving_mean.value, layer.moving_variance.value])}

  replicas = replicator.run(step, batch)
  for result in replicas[1:]:  # Every replica keeps its own copy, and all are the same.
    np.testing.assert_array_equal(result["moving"], replicas[0]["moving"])
  results = {name: np.concatenate([r[name] for r in replicas]) for name in ("y", "dx")}
  results["dgamma"], results["dbeta"] = replicas[0]["dw"]
  # Read from outside, as an evaluation does.
  results["moving_mean"] = layer.moving_mean.numpy()
  results["moving_variance"] = layer.moving_variance.numpy()
  return results


def test_batch_norm_is_that_of_the_global_batch(float64, synchronous):
  for shape in ([8, 4, 5, 3], [4, 3]):  # The latter has one example on each of four replicas.
    batch = batch_of(shape)
    results = train_once(synchronous, batch)
    for name, expected in reference(**batch).items():
      assert results[name].dtype == np.float64
      close(results[name], expected, 1e-12, name)


@pytest.mark.parametrize("devices, jit_compile, shape", [
    (1, False, [16, 2, 2, 3]), (1, True, [16, 2, 2, 3]), (4, False, [64, 3])], ids=str)
def test_batch_norm_does_not_cancel_where_the_mean_is_large(devices, jit_compile, shape):
  # E[x^2] - E[x]^2 would be 29 % off here. The mean itself is known to 6e-5, its last digit.
  batch = batch_of(shape, mean=1e3, std=1.0, dtype=np.float32)
  results = train_once(Replicator("mirrored", logical_cpus=devices, jit_compile=jit_compile), batch)
  expected = reference(**batch)
  moving = results["moving_variance"].astype(np.float64)
  np.testing.assert_allclose((moving - MOMENTUM) / (1 - MOMENTUM),
                             (expected["moving_variance"] - MOMENTUM) / (1 - MOMENTUM), rtol=1e-4)
  for name in ("y", "dx", "dgamma", "dbeta"):
    close(results[name], expected[name], 2e-4, name)


@pytest.mark.parametrize("shape", [[4, 3], [4, 2, 2, 3]], ids=str)
def test_a_batch_that_is_not_finite_does_not_spoil_the_moving_statistics(shape):
  layer = GlobalBatchNorm()
  x = np.ones(shape, np.float32)
  x[0] = np.nan
  assert np.isnan(layer(x, training=True).numpy()).all()
  np.testing.assert_array_equal(layer.moving_mean, np.zeros(3))
  np.testing.assert_array_equal(layer.moving_variance, np.ones(3))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_micro_batch_that_is_not_finite_moves_nothing(float64, n):
  layer = GlobalBatchNorm(momentum=0.9)
  layer.build([None, 3])
  layer.moving_mean.assign([100.0] * 3)
  x = np.random.default_rng(0).normal(size=[8, 3])
  x[n - 1] = np.inf  # In the last micro-batch.
  parts = [x[j::n] for j in range(n - 1)]
  expected = 100 + 0.1 / n * sum(part.mean(0) - 100 for part in parts)
  Replicator("one_device").run(lambda x: microbatch(
      lambda part: tf.reduce_mean(layer(part, training=True)), x, n=n), x)
  np.testing.assert_allclose(layer.moving_mean, expected + np.zeros(3), rtol=1e-13)


def test_micro_batches_move_the_statistics_in_a_branch(float64):
  layer, x = GlobalBatchNorm(momentum=MOMENTUM), batch_of([8, 3])["x"]
  layer.build([None, 3])
  branch = lambda part: tf.cond(library.step_number() >= 0,
                                lambda: layer(part, training=True), lambda: part)
  Replicator("one_device").run(lambda x: microbatch(branch, x, n=2), x)
  close(layer.moving_mean.numpy(), (1 - MOMENTUM) * x.mean(0), 1e-13)


def test_a_pass_with_averaged_weights_moves_no_statistics_of_micro_batches(float64, one_or_two):
  with one_or_two.scope():
    layer = GlobalBatchNorm(momentum=MOMENTUM)
    layer.build([None, 3])
    optimizer = library.wrap_optimizer(keras.optimizers.SGD(), layer.trainable_variables,
                                       ema_decay=0.5)
  batch = batch_of([8, 3])["x"]

  def passes(part):
    loss = tf.reduce_mean(layer(part, training=True))
    with optimizer.averaged_weights():
      layer(2.0 * part, training=True)  # A teacher.
    return loss

  one_or_two.run(lambda x: microbatch(passes, x, n=4), batch)
  mean = (1 - MOMENTUM) * np.mean([batch[j::4].mean(0) for j in range(4)], 0)
  close(layer.moving_mean.numpy(), mean, 1e-13)


def test_micro_batches_move_the_statistics_of_a_layer_that_is_called_twice(float64, one_or_two):
  batch = batch_of([8, 3])["x"]
  layer = build(one_or_two)

  def step(x):
    return microbatch(lambda part: [tf.reduce_mean(layer(k * part, training=True))
                                    for k in (1.0, 2.0)], x, n=4)

  one_or_two.run(step, batch)
  mean, variance = 0.0, 1.0
  for k in (1.0, 2.0):
    parts = [k * batch[j::4] for j in range(4)]
    mean = MOMENTUM * mean + (1 - MOMENTUM) * np.mean([x.mean(0) for x in parts], 0)
    variance = MOMENTUM * variance + (1 - MOMENTUM) * np.mean([x.var(0) for x in parts], 0)
  close(layer.moving_mean.numpy(), mean, 1e-13)
  close(layer.moving_variance.numpy(), variance, 1e-13)


def test_inference_uses_the_moving_statistics(float64, one_or_two):
  layer = build(one_or_two)
  mean, variance = np.array([1.0, -2.0, 0.0]), np.array([4.0, 0.25, 1.0])
  layer.moving_mean.assign(mean)
  layer.moving_variance.assign(variance)
  x = RNG.normal(size=[8, 3])
  expected = GAMMA * (x - mean) / np.sqrt(variance + EPSILON) + BETA
  close(np.concatenate(one_or_two.run(layer, x)), expected, 1e-12)
  close(layer(x).numpy(), expected, 1e-12)  # From outside.
  np.testing.assert_array_equal(layer.moving_mean.numpy(), mean)
  np.testing.assert_array_equal(layer.moving_variance.numpy(), variance)


@pytest.mark.parametrize("center, scale", [(True, False), (False, True)])
def test_offset_and_scale_can_be_left_out(float64, center, scale):
  layer = GlobalBatchNorm(center=center, scale=scale, momentum=0.5, epsilon=0.1)
  x = RNG.normal(size=[5, 3])
  close(layer(x, training=True), (x - x.mean(0)) / np.sqrt(x.var(0) + 0.1), 1e-12)
  close(layer.moving_mean.numpy(), 0.5 * x.mean(0), 1e-12)
  assert len(layer.trainable_variables) == center + scale
  assert len(layer.non_trainable_variables) == 2


def penalty_and_gradient(normalize, variables, batch) -> list[tf.Tensor]:
  """A gradient penalty through a batch norm, and its gradient: second derivatives of it."""
  x, (kernel, *others) = batch["x"], [v.value for v in variables]
  with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
      inner.watch(x)
      y = normalize(tf.matmul(x, kernel))
      # The sum over the replica's examples: its gradient is the same however they are divided.
      total = tf.reduce_sum(tf.tanh(y) * batch["t"])
    penalty = tf.reduce_mean(tf.reduce_sum(inner.gradient(total, x) ** 2, 1))
  return all_mean([penalty, *outer.gradient(penalty, [kernel, *others])])


@pytest.mark.parametrize("devices, eager", [(1, True), (2, False)])
def test_a_gradient_penalty_through_batch_norm_is_that_of_plain_operations(
    float64, run_eagerly, devices, eager):
  batch = batch_of([8, 3])
  kernel, gamma, beta = (keras.Variable(v) for v in (RNG.normal(size=[3, 3]), GAMMA, BETA))

  def plain(x):
    mean, variance = tf.nn.moments(x, [0])
    return (x - mean) / tf.sqrt(variance + EPSILON) * gamma.value + beta.value

  expected = penalty_and_gradient(plain, [kernel, gamma, beta],
                                  {name: tf.constant(value) for name, value in batch.items()})
  replicator = Replicator("mirrored", logical_cpus=devices)
  layer = build(replicator)
  with replicator.scope():
    weights = keras.Variable(kernel.numpy())
  if eager:
    run_eagerly()
  for result in replicator.run(lambda batch: penalty_and_gradient(
      lambda x: layer(x, training=True), [weights, layer.gamma, layer.beta], batch), batch):
    nests_close(result, expected, 1e-11, 1e-13)


@pytest.mark.parametrize("shapes, precision, rtol", [
    ([[6, 2, 2, 3], [1, 5, 1, 3]], "float64", 1e-12), ([[4, 3], [0, 3], [2, 3]], "float32", 3e-5)],
    ids=str)
def test_unequal_batches(shapes, precision, rtol):
  replicator = Replicator("mirrored", logical_cpus=len(shapes))
  parts = [{"x": RNG.normal(10 * i, 1 + i, shape).astype(precision),
            "t": RNG.normal(size=shape).astype(precision)} for i, shape in enumerate(shapes)]
  scale, offset = (tf.constant(v, precision) for v in (GAMMA, BETA))

  def step():
    part = parts[int(tf.get_static_value(context.replica_id()))]
    batch = {name: tf.constant(value) for name, value in part.items()}
    with tf.GradientTape() as tape:
      tape.watch([batch["x"], scale, offset])
      y, (mean, variance) = batch_normalized(batch["x"], scale, offset, EPSILON)
      loss = tf.reduce_sum(y * batch["t"])
    return y, mean, variance, *tape.gradient(loss, [batch["x"], scale, offset])

  results = replicator.run(step)
  rows = lambda arrays: np.concatenate([np.reshape(a, [-1, 3]) for a in arrays])
  x, t = (rows([part[name] for part in parts]).astype(np.float64) for name in ("x", "t"))
  expected = reference(x, t * len(x))  # Whose loss is a mean over the examples.
  y, _, _, dx, dscale, doffset = zip(*results, strict=True)
  close(rows(y), expected["y"], rtol)
  close(rows(dx), expected["dx"], rtol)
  close(sum(dscale), expected["dgamma"], rtol)
  close(sum(doffset), expected["dbeta"], rtol)
  for _, mean, variance, *_ in results:
    close(mean, x.mean(0), rtol)
    close(variance, x.var(0), rtol)


def test_batch_norm_of_groups(float64):
  groups = [[0, 3], [2, 1]]
  replicator = Replicator("mirrored", logical_cpus=4)
  batch = batch_of([8, 3])
  layer = build(replicator, groups=groups)
  calls = []

  def step(batch):
    with tf.GradientTape() as tape:
      tape.watch(batch["x"])
      y = layer(batch["x"], training=True)
      loss = tf.reduce_sum(y * batch["t"])
    gradient = tape.gradient(loss, batch["x"])
    calls.append(list(context.current().collectives))
    return y, gradient, layer.moving_mean.value, layer.moving_variance.value

  results = replicator.run(step, batch)
  assert [len(c) for c in calls] == [2] * 4  # Forward and backward.
  rows = lambda group: np.concatenate([[2 * r, 2 * r + 1] for r in group])
  for group in groups:
    expected = reference(batch["x"][rows(group)], batch["t"][rows(group)])
    close(np.concatenate([results[r][0] for r in group]), expected["y"], 1e-12)
    close(np.concatenate([results[r][1] for r in group]), 4 * expected["dx"], 1e-12)
  for _, _, mean, variance in results:  # The moments of all replicas, the same on each.
    close(mean, 0.1 * batch["x"].mean(0), 1e-12)
    close(variance, 0.9 + 0.1 * batch["x"].var(0), 1e-12)


# ---- Standing statistics ------------------------------------------------------------------------


BATCHES = np.random.default_rng(0).normal(3.0, 2.0, [3, 8, 4])
X = np.random.default_rng(1).normal(size=[5, 4])


def test_standing_statistics_are_the_means_over_the_passes(float64):
  network = keras.Sequential([
      keras.Input([4]), GlobalBatchNorm(epsilon=0.0, momentum=0.7),
      GlobalBatchNorm(epsilon=3.0, momentum=0.4)])
  standing = lambda i: network(BATCHES[i], training=True)
  with library.use_standing_statistics(network, standing, len(BATCHES)):
    outputs = network(X, training=False)
  mean, variance = BATCHES.mean(1).mean(0), BATCHES.var(1).mean(0)
  # The second layer sees the mean 0 and the variance 1 in every pass.
  np.testing.assert_allclose(outputs, (X - mean) / np.sqrt(variance) / 2, rtol=1e-12)


def test_they_leave_nothing_behind_and_averages_are_used(float64):
  network = keras.Sequential([keras.Input([4]), SpectralNorm(keras.layers.Dense(4)),
                              GlobalBatchNorm()])
  optimizer = library.wrap_optimizer(keras.optimizers.SGD(1.0), network.trainable_variables,
                                     ema_decay=0.5)
  before = [v.numpy() for v in network.variables]
  random = np.random.default_rng(2)
  averages = [v.numpy() + random.normal(size=v.shape) for v in optimizer.averages]
  for variable, value in zip(optimizer.averages, averages, strict=True):
    variable.assign(value)

  @tf.function(autograph=False)
  def sample(x):
    with optimizer.averaged_weights(), library.use_standing_statistics(
        network, lambda i: network(BATCHES[i], training=True), 2):
      return network(x, training=False)

  outputs = sample(X)
  np.testing.assert_equal([v.numpy() for v in network.variables], before)
  for variable, value in zip(network.trainable_variables, averages, strict=True):
    variable.assign(value)
  with library.use_standing_statistics(network, lambda i: network(BATCHES[i], training=True), 2):
    np.testing.assert_allclose(outputs, network(X, training=False), rtol=1e-12)


@pytest.mark.parametrize("layer, passes", [
    (keras.layers.ReLU(), 1), (GlobalBatchNorm(), 0)])
def test_without_passes_or_layers_it_is_refused(layer, passes):
  with (pytest.raises(UsageError, match="needs at least one of each"),
        library.use_standing_statistics(keras.Sequential([layer]), lambda i: None, passes)):
    pass


def test_a_frozen_batch_norm_has_its_moving_statistics_as_standing_ones():
  x = tf.constant(BATCHES[0], tf.float32)
  net = keras.Sequential([keras.Input([4]), GlobalBatchNorm(), keras.layers.Dense(2),
                          GlobalBatchNorm()])
  net.layers[0].trainable = False
  expected = net.layers[0](x)
  with library.use_standing_statistics(net, lambda i: net(x, training=True), 2):
    np.testing.assert_array_equal(net.layers[0](x), expected)
    assert abs(float(tf.reduce_mean(net(x)))) < 1e-5  # The other one has those of x.
