"""Micro-batches against the full batch, in float64."""

import functools

import replicator
from replicator import GlobalBatchNorm, Replicator, SpectralNorm, UsageError, microbatch, random
from replicator.strategies.compiled_step import CompiledStep
from tests.programs.closeness import nests_close

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

BATCHES = np.random.default_rng(0).normal(size=[2, 16, 3])


class Networks(tf.Module):
  """A critic is updated, then a generator through it: two phases, each in n micro-batches.

  Args:
    n: how many micro-batches.
    normalization: a layer for the generator.
  """

  def __init__(self, n: int, normalization: type = keras.layers.Identity):
    super().__init__()
    self.n = n
    keras.utils.set_random_seed(0)
    random.set_seed(0)
    self.generator = keras.Sequential([keras.Input([3]), keras.layers.Dense(3), normalization()])
    self.critic = keras.Sequential([keras.Input([3]), SpectralNorm(keras.layers.Dense(1))])
    self.optimizers = {name: replicator.wrap_optimizer(
        keras.optimizers.SGD(0.1, momentum=0.5), getattr(self, name).trainable_variables)
                       for name in ("generator", "critic")}

  def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
    critic_loss = self._update("critic", self._critic_loss, x)
    generator_loss = self.update_generator(x)
    # A stream goes on after micro-batches as it does after the full batch.
    return {"critic": critic_loss, "generator": generator_loss,
            "draw": tf.reduce_mean(random.normal("z", [x.shape[0]]))}

  def update_generator(self, x):
    return self._update("generator", self._generator_loss, x)

  def _critic_loss(self, x):
    z = random.normal("z", x.shape) + random.uniform("z", x.shape)
    # Called twice: the power iteration of each call is its own.
    fake_scores = self.critic(self.generator(z, training=True), training=True)
    return tf.reduce_mean(fake_scores - tf.tanh(self.critic(x, training=True)))

  def _generator_loss(self, x):
    return -tf.reduce_mean(self.critic(self.generator(x, training=True), training=True) ** 3)

  def _update(self, name, loss_fn, x):
    optimizer = self.optimizers[name]
    loss, gradients = microbatch(
        lambda part: optimizer.loss_and_gradients(loss_fn, part), x, self.n)
    optimizer.apply(gradients)
    return loss


def train(on: Replicator, n: int, steps_per_call=2):
  """Losses of two steps, and the variables after them."""
  with on.scope():
    networks = Networks(n)
  function = CompiledStep(on, networks, steps_per_call, logs=True)
  calls = [BATCHES] if steps_per_call == 2 else BATCHES  # Two steps.
  losses = [function(i, x).fetch()[0] for i, x in enumerate(calls)]
  variables = [*networks.generator.variables, *networks.critic.variables]
  return ({name: np.concatenate([part[name] for part in losses]) for name in losses[0]},
          [v.numpy() for v in variables])


@functools.cache
def full_batch():
  """The same in float64 on one device."""
  return train(Replicator("one_device"), 1)


# ---- What the full batch would have -------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["replicas", "eager", pytest.param("xla", marks=pytest.mark.slow)])
def test_micro_batches_train_as_the_full_batch(float64, run_eagerly, how):
  expected = full_batch()
  if how == "eager":
    run_eagerly()
  found = (train(Replicator("mirrored", logical_cpus=2), 4) if how == "replicas" else
           train(Replicator("one_device", jit_compile=how == "xla"), 8, steps_per_call=1))
  nests_close(found, expected, 1e-12, 1e-12)


def test_with_batch_norm_micro_batches_are_those_of_one_replica(float64):
  # Statistics are of one micro-batch over all replicas: the same examples whatever their number.
  def trained(on):
    with on.scope():
      networks = Networks(2, GlobalBatchNorm)
    losses = [np.mean(on.run(networks.update_generator, x)) for x in BATCHES]
    return {"generator": losses}, [v.numpy() for v in networks.generator.variables]

  nests_close(trained(Replicator("mirrored", logical_cpus=2)), trained(Replicator("one_device")),
              1e-12, 1e-12)


class Race:
  """Two updates, of which the second reads in its loop what the first has written."""

  def __init__(self):
    keras.utils.set_random_seed(0)
    self.encoder = keras.Sequential([
        keras.Input([64]), keras.layers.Dense(256), GlobalBatchNorm(), keras.layers.Dense(8)])
    self.critic = keras.Sequential([
        keras.Input([8]), keras.layers.Dense(64), keras.layers.Dense(1)])
    self.optimizers = replicator.wrap_optimizers(
        keras.optimizers.Adam, encoder=self.encoder, critic=self.critic)

  def __call__(self, x):
    score = lambda x: tf.reduce_mean(tf.square(self.critic(self.encoder(x, training=True)) - 1))
    return [self.optimizers[name].minimize(score, x) for name in ("encoder", "critic")]


def test_a_loop_reads_what_was_written_before_it(restored):
  gin.bind_parameter("microbatch.n", 2)
  batch = np.random.default_rng(0).normal(size=[32, 64]).astype(np.float32)

  def losses(on):
    with on.scope():
      step = Race()
    return [np.mean(on.run(step, batch), axis=0) for _ in range(100)]

  np.testing.assert_allclose(losses(Replicator("one_device")),
                             losses(Replicator("mirrored", logical_cpus=2)), rtol=1e-4, atol=1e-6)


# ---- What it costs ------------------------------------------------------------------------------


def traced(on: Replicator, step) -> tuple[tf.Graph, list]:
  """The graph of a step on all replicas, and what it returned on each."""
  graphs = []
  def noted(x):
    graphs.append(tf.compat.v1.get_default_graph())
    return step(x)
  outputs = on.run(noted, BATCHES[0])
  return graphs[0], outputs


def nodes_of(graph: tf.Graph) -> list:
  """The operations of a graph, those of loop bodies included."""
  whole = graph.as_graph_def()
  return [*whole.node, *(node for f in whole.library.function for node in f.node_def)]


def graph_size(n: int) -> tuple[int, list[str]]:
  """Operations of an update's graph, loop bodies included, and its collectives."""
  on = Replicator("mirrored", logical_cpus=2)
  with on.scope():
    networks = Networks(n)
  graph, _ = traced(on, networks.update_generator)
  return len(nodes_of(graph)), on.calls_traced


def test_a_loop_does_not_grow_with_their_number(float64):
  (two, collectives), (four, same_collectives) = graph_size(2), graph_size(4)
  assert four == two
  assert collectives == same_collectives
  assert [call.split(" of ")[0] for call in collectives] == ["all_mean"]  # The optimizer's.


def test_the_loop_computes_one_micro_batch_at_a_time():
  # Several at once would need the memory of the full batch.
  on = Replicator("one_device")
  mean = lambda x: {"mean": microbatch(tf.reduce_mean, x, 4)}
  nodes = nodes_of(traced(on, mean)[0])
  assert [node.attr["parallel_iterations"].i for node in nodes if node.op.endswith("While")] == [1]


def test_unrolled_micro_batches_wait_for_those_before(two):
  mean = lambda x: microbatch(lambda part: replicator.all_mean(tf.reduce_mean(tf.sin(part))), x, 4)
  graph, outputs = traced(two, mean)
  waits = lambda op: any(x.control_inputs for x in (op, *(x.op for x in op.inputs)))
  parts = [op.inputs[0].op for op in graph.get_operations() if op.type == "Sin"]
  assert [waits(op) for op in parts] == [False] * 2 + [True] * 6
  for result in outputs:
    np.testing.assert_allclose(result, np.sin(BATCHES[0]).mean(), rtol=1e-12)


# ---- Any results, any batch ---------------------------------------------------------------------


def test_nests_keep_their_structure_and_dtypes():
  batch = {"x": tf.range(8.0), "label": (tf.range(8), None)}

  def means(part):
    x, labels = part["x"], part["label"][0]
    np.testing.assert_array_equal(tf.cast(labels, tf.float32), x)
    return {"mean": tf.reduce_mean(x), "none": None,
            "small": (tf.reduce_mean(tf.cast(x, tf.bfloat16)), tf.cast(x[0], tf.float16))}

  result = microbatch(means, batch, 4)
  assert result["none"] is None
  values = [result["mean"], *result["small"]]
  assert [float(v) for v in values] == [3.5, 3.5, 1.5]
  assert [v.dtype for v in values] == ["float32", "bfloat16", "float16"]


def test_half_precision_is_added_up_in_single_precision():
  # One more is lost in a half precision sum: large + 1 is rounded to large.
  for dtype, large, mean in (("bfloat16", 256.0, 65.0), ("float16", 2048.0, 513.0)):
    result = microbatch(lambda part: part[0], tf.constant([large, 1.0, 1.0, 1.0], dtype), 4)
    assert result.dtype == dtype and float(result) == mean


def test_gradients_of_embeddings_are_added_up():
  table = tf.Variable(tf.ones([5, 2]))
  indices = tf.constant([0, 1, 0, 4])

  def gradient(indices):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.gather(table, indices) ** 2)
    return tape.gradient(loss, table)

  np.testing.assert_allclose(microbatch(gradient, indices, 2),
                             tf.convert_to_tensor(gradient(indices)))


def test_what_cannot_be_divided_is_refused():
  x = tf.zeros([4])
  for call, message in (
      (lambda: microbatch(tf.reduce_mean, x, 3), "microbatch.n = 3: does not divide"),
      (lambda: microbatch(tf.reduce_mean, x, 0), "microbatch.n = 0: must be a whole number"),
      (lambda: microbatch(tf.reduce_mean, x, 2.0), "microbatch.n = 2.0: must be a whole number"),
      (lambda: microbatch(lambda x: tf.shape(x), x, 2), "a tensor of dtype int32"),
      (lambda: microbatch(tf.reduce_mean, [x, x[:2]], 2), r"not \[2, 4\]; "),
      (lambda: microbatch(lambda x: microbatch(tf.reduce_mean, x, 2), x, 2), "batch only once")):
    with pytest.raises(UsageError, match=message):
      call()
