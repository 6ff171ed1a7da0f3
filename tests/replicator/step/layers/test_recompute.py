"""recompute_grad: the gradients, draws and states of a function that is not recomputed."""

import functools

import replicator
from replicator import Dropout, Replicator, SpectralNorm, UsageError, random, recompute_grad
from tests.programs.closeness import close, nests_close

import keras
import numpy as np
import pytest
import tensorflow as tf

X = np.random.default_rng(0).normal(size=[8, 5])
L = keras.layers

pytestmark = pytest.mark.usefixtures("float64")


class Network:
  """A block with all that draws, iterates or moves, recomputed by `wrap`."""

  def __init__(self, wrap):
    keras.utils.set_random_seed(0)
    block = keras.Sequential([
        keras.Input([5]), SpectralNorm(L.Dense(5)), replicator.GlobalBatchNorm(),
        L.Activation("tanh"), Dropout(0.3), L.Dropout(0.2)])
    self.block, self.weights = wrap(block), block.trainable_variables
    self.state = block.non_trainable_variables

  def loss_and_gradients(self, x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      outputs = self.block(x + random.normal("z", x.shape), training=True)
      loss = tf.reduce_mean(tf.square(outputs - 1))
    return loss, tape.gradient(loss, [x, *(v.value for v in self.weights)])

  def penalized(self, x):
    """A loss with the gradient in it, and the second derivatives."""
    with tf.GradientTape() as tape:
      loss, (dx, *_) = self.loss_and_gradients(x)
      loss += tf.reduce_sum(tf.square(dx))
    return loss, tape.gradient(loss, [v.value for v in self.weights])


def trained(wrap, make_replicator, method="loss_and_gradients", n=1):
  """The results of two steps on the first replica, the states after them, and a later draw."""
  random.set_seed(0)
  on = make_replicator()
  with on.scope():
    network = Network(wrap)

  def step(x):
    if method == "loss_and_gradients":
      loss, (_, *gradients) = replicator.microbatch(network.loss_and_gradients, x, n=n)
    else:
      loss, gradients = network.penalized(x)
    return replicator.all_mean([loss, *gradients]), random.normal("dropout", [1])
  results = [on.run(step, X)[0] for _ in range(2)]
  return results, [v.numpy() for v in network.state]


@pytest.mark.parametrize("strategy, method, n, eager", [
    ("one_device", "loss_and_gradients", 2, False),
    ("mirrored", "loss_and_gradients", 1, False),
    ("one_device", "penalized", 1, True),
    pytest.param("mirrored", "penalized", 1, False, marks=pytest.mark.slow),
    pytest.param("xla", "penalized", 1, False, marks=pytest.mark.slow)])
def test_gradients_draws_and_states_are_those_without_recomputation(
    run_eagerly, strategy, method, n, eager):
  if strategy == "xla":
    make = functools.partial(Replicator, "one_device", jit_compile=True)
  else:
    make = functools.partial(Replicator, strategy,
                             logical_cpus=None if strategy == "one_device" else 2)
  if eager:
    run_eagerly()
  expected, expected_state = trained(lambda block: block, make, method, n)
  found, state = trained(recompute_grad, make, method, n)
  for (values, draw), (others, other_draw) in zip(found, expected, strict=True):
    np.testing.assert_array_equal(draw, other_draw)
    largest = max(np.abs(other).max() for other in others)
    for value, other in zip(values, others, strict=True):
      np.testing.assert_allclose(value, other, rtol=1e-12, atol=1e-12 * largest)
  nests_close(state, expected_state, 0)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("divide", [lambda wrap, net: wrap(net),
                                    lambda wrap, net: wrap(lambda x: wrap(net)(x))])
def test_an_update_before_the_gradient_is_not_seen_by_the_second_pass(divide, jit_compile):
  def gradients(wrap) -> list:
    keras.utils.set_random_seed(0)
    generator = keras.Sequential([keras.Input([5]), L.Dense(5)])
    critic = keras.Sequential([keras.Input([5]), L.Dense(4, "tanh"), L.Dense(1)])
    optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.5), critic.trainable_variables)
    judge = divide(wrap, critic)

    def step(x):
      with tf.GradientTape(persistent=True) as tape:
        score = tf.reduce_mean(tf.square(judge(generator(x))))
      of_critic = tape.gradient(score, critic.trainable_variables)
      optimizer.apply(of_critic)
      return [of_critic, tape.gradient(score, generator.trainable_variables)]

    return tf.nest.flatten(Replicator("one_device", jit_compile=jit_compile).run(step, X)[0])

  nests_close(gradients(recompute_grad), gradients(lambda function: function), 1e-12)


# ---- One function, in plain eager code ----------------------------------------------------------


def gradients_of(function, *sources, wrap=lambda f: f):
  with tf.GradientTape() as tape:
    tape.watch([x for x in sources if isinstance(x, tf.Tensor)])
    loss = tf.reduce_sum(wrap(function)(*sources) ** 2)
  return tape.gradient(loss, sources)


def test_a_recomputed_function_inside_another():
  layer = SpectralNorm(L.Dense(5))
  layer.build(X.shape)
  dropout, weight = Dropout(0.5), tf.Variable(2.0, dtype=tf.float64)
  results = []
  for wrap in (lambda f: f, recompute_grad):
    random.set_seed(0)
    layer.u.assign(tf.ones([1, 5]))
    inner = wrap(lambda x: dropout(layer(x, training=True), training=True))
    outer = wrap(lambda x, inner=inner: inner(inner(x) * weight))
    results.append([*gradients_of(lambda x, _, outer=outer: outer(x), tf.constant(X), weight),
                    layer.u.numpy(), random.normal("dropout", [3])])
  nests_close(*results, 0)


def test_a_spectral_norm_of_a_layer_that_recomputes_itself():
  class Recomputing(L.Dense):
    def call(self, inputs):
      return recompute_grad(super().call)(inputs)

  results = []
  for make in (L.Dense, Recomputing):
    layer = SpectralNorm(make(3, kernel_initializer=keras.initializers.RandomNormal(seed=0)))
    layer.build(X.shape)
    layer.u.assign(tf.ones([1, 3]))
    results.append(gradients_of(
        lambda x, *_, layer=layer: layer(x, training=True), tf.constant(X), layer.kernel.value))
  for found, expected in zip(*results, strict=True):
    close(found, expected, 1e-12)


def test_arguments_and_results_are_nests_of_anything():
  seen = []

  def function(pair, *, scale, table, indices, training):
    seen.append(training)
    return {"y": pair[0] * pair[1] * scale + tf.gather(table.value, indices), "n": indices,
            "none": None}
  table = keras.Variable(X[:, :1])
  x, scale = tf.constant(X[:4, :1]), tf.constant(3.0, tf.float64)
  with tf.GradientTape() as tape:
    tape.watch([x, scale])
    outputs = recompute_grad(function)([x, x], scale=scale, table=table,
                                       indices=tf.constant([2, 2, 0, 1]), training=True)
  dx, dscale, dtable = tape.gradient(outputs["y"], [x, scale, table.value])
  np.testing.assert_array_equal(outputs["n"], [2, 2, 0, 1])
  assert outputs["none"] is None and seen == [True, True]
  close(dx, 6 * X[:4, :1], 1e-12)
  close(dscale, np.sum(X[:4, :1] ** 2), 1e-12)
  close(tf.convert_to_tensor(dtable), np.array([[1, 1, 2, 0, 0, 0, 0, 0]]).T, 1e-12)


def test_the_second_pass_waits_for_the_gradient():
  @tf.function(autograph=False)
  def step(x):
    return gradients_of(tf.sin, x, wrap=recompute_grad)

  graph = step.get_concrete_function(tf.constant(X)).graph
  _, again = (op for op in graph.get_operations() if op.type == "Sin")
  assert again.inputs[0].op.control_inputs
  np.testing.assert_allclose(step(tf.constant(X))[0], np.sin(2 * X), rtol=1e-12)


# ---- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("make, message", [
    (lambda: L.Dense(2), "the variable 'dense.*' is created where weights are replaced"),
    (lambda: L.ActivityRegularization(l2=1.0),
     "recompute_grad: .* adds losses, by add_loss or an activity"),
])
def test_layers_that_would_lose_something_are_refused(make, message):
  with pytest.raises(UsageError, match=message):
    recompute_grad(make())(tf.constant(X))


def test_a_symbolic_tensor_is_refused():
  with pytest.raises(UsageError, match="is called on a symbolic Keras tensor; call it in"):
    recompute_grad(L.Dense(2))(keras.Input([5]))


GENERATOR = tf.random.Generator.from_seed(0)
COUNT, ROWS = (tf.Variable(value, trainable=False) for value in (0.0, [0.0, 0.0]))


@pytest.mark.parametrize("function, message", [
    (lambda x, y: x * y, r"'.*lambda>' uses a tensor \(8, 5\) that has a gradient \(.*\); pass it"),
    (lambda x, y: x + tf.cast(COUNT.assign_add(1.0), x.dtype), "assigns a tf.Variable"),
    (lambda x, y: x + tf.cast(ROWS.scatter_nd_add([[0]], [1.0])[0], x.dtype), "assigns a tf.V"),
    (lambda x, y: x * tf.random.normal(x.shape, dtype=x.dtype), "draws with tf.random"),
    (lambda x, y: tf.nn.dropout(x, 0.5), "draws with tf.random"),
    (lambda x, y: x * GENERATOR.normal(x.shape, dtype=x.dtype), "draws with tf.random .Rng"),
])
def test_what_would_be_wrong_in_a_compiled_step_is_refused(function, message):
  def step(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = 2 * x
      loss = tf.reduce_sum(recompute_grad(lambda x: function(x, y))(x))
    return tape.gradient(loss, x)
  with pytest.raises(UsageError, match=f"recompute_grad: .*{message}"):
    tf.function(step, autograph=False).get_concrete_function(tf.constant(X))


# ---- TensorFlow's and Keras' own ----------------------------------------------------------------

LAYERS = {"draw": lambda: Dropout(0.5), "run its power iteration": lambda: SpectralNorm(L.Dense(3)),
          "update its statistics": replicator.GlobalBatchNorm}


def pool_called(call: str):
  """A function that gives examples to a pool, and the message that refuses it."""
  pool = replicator.ExamplePool(4, [5], "float64")

  def passed_in(x):
    getattr(pool, call)(x)
    return 2 * x

  return passed_in, f"^ExamplePool.{call} would add its examples again when"


@pytest.mark.parametrize("wrap", [tf.recompute_grad, keras.remat], ids=["tensorflow", "keras"])
def test_their_recomputation_is_refused(wrap):
  refused = [pool_called("append"), pool_called("exchange")]
  for change, make in LAYERS.items():
    layer = make()
    layer.build(X.shape)
    refused.append((lambda x, layer=layer: layer(x, training=True),
                    f"would {change} again when tf.recompute_grad .*"
                    "use replicator.recompute_grad"))
    gradients_of(lambda x, layer=layer: layer(x, training=False), tf.constant(X), wrap=wrap)
  for function, message in refused:
    with pytest.raises(UsageError, match=message):
      gradients_of(function, tf.constant(X), wrap=wrap)


@pytest.mark.parametrize("change", LAYERS)
def test_a_remat_scope_is_refused(change):
  make = LAYERS[change] if change != "run its power iteration" else lambda: SpectralNorm(dense)
  dense = L.Dense(3)
  with keras.RematScope(mode="full"):
    layer = make()
  layer.build(X.shape)
  with pytest.raises(UsageError, match=f"would {change} again .*keras.RematScope"):
    gradients_of(lambda x: layer(x, training=True), tf.constant(X))
