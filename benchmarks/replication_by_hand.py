"""The step of `benchmarks.replication_overhead`, written by hand with `tf.distribute` and Keras 3.

It uses Keras layers, `BatchNormalization(synchronized=True)`, Keras Adam, which sums the gradients
of the replicas, and a loss divided by their number. It uses nothing from this project.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def prepare(name: str, code_size: int, units: int, depth: int
            ) -> Callable[[np.ndarray], Callable[[], float]]:
  """Makes the strategy called `name`; returns a function that makes compiled calls.

  Args:
    name: 'hand-default', 'hand-hierarchical' or 'hand-reduction', all on two logical CPUs;
      'hand-workers', for a process of a cluster; 'hand-plain', without `tf.distribute`.
    code_size: dimensions of the latent code.
    units: units per hidden layer.
    depth: hidden layers per network, each with batch norm.

  Returns:
    a function of float32 `[steps, n, features]`, this process's part of each global batch. It
    returns a call that trains on all batches, and returns the discriminator's last loss.
  """
  operations = {"hand-default": None,
                "hand-hierarchical": tf.distribute.HierarchicalCopyAllReduce(),
                "hand-reduction": tf.distribute.ReductionToOneDevice()}
  if name == "hand-plain":
    return lambda batches: _plain(batches, code_size, units, depth)
  if name == "hand-workers":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
  else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], operations[name])
  return lambda batches: _replicated(strategy, batches, code_size, units, depth)


def _plain(batches: np.ndarray, code_size: int, units: int, depth: int) -> Callable[[], float]:
  step = _make_step(batches.shape[-1], code_size, units, depth, 1)
  images = tf.constant(batches)
  return _in_one_call(lambda i: step(images[i]), len(batches))


def _replicated(strategy: tf.distribute.Strategy, batches: np.ndarray, code_size: int, units: int,
                depth: int) -> Callable[[], float]:
  with strategy.scope():
    step = _make_step(batches.shape[-1], code_size, units, depth, strategy.num_replicas_in_sync)
  # Made once, because an iterator over a distributed data set would cost time in every step.
  local_replicas = len(strategy.extended.worker_devices)
  shares = np.split(batches, local_replicas, axis=1)
  images = strategy.experimental_distribute_values_from_function(
      lambda context: tf.constant(shares[context.replica_id_in_sync_group % local_replicas]))

  def train_step(i):
    losses = strategy.run(lambda images: step(images[i]), args=(images,))
    return tf.add_n(strategy.experimental_local_results(losses))

  return _in_one_call(train_step, len(batches))


def _make_step(image_size: int, code_size: int, units: int, depth: int, num_replicas: int
               ) -> Callable:
  def mlp(inputs: int, outputs: int) -> keras.Model:
    hidden = lambda: [
        layers.Dense(units, use_bias=False),
        layers.BatchNormalization(momentum=0.9, epsilon=1e-5, synchronized=num_replicas > 1),
        layers.ReLU()]
    return keras.Sequential([
        keras.Input([inputs]), *(layer for _ in range(depth) for layer in hidden()),
        layers.Dense(outputs)])

  generator, encoder = mlp(code_size, image_size), mlp(image_size, code_size)
  discriminator = mlp(image_size + code_size, 1)
  ge_vars = generator.trainable_variables + encoder.trainable_variables
  d_vars = discriminator.trainable_variables
  ge_optimizer, d_optimizer = (keras.optimizers.Adam(2e-4, beta_1=0.5) for _ in range(2))
  ge_optimizer.build(ge_vars)
  d_optimizer.build(d_vars)

  def step(x):
    z = tf.random.normal([x.shape[0], code_size])
    with tf.GradientTape(persistent=True) as tape:
      pairs = tf.concat([tf.concat([x, generator(z, training=True)], 0),
                         tf.concat([encoder(x, training=True), z], 0)], 1)
      real, fake = tf.split(discriminator(pairs, training=True), 2)
      d_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(fake)) / num_replicas
      ge_loss = tf.reduce_mean(tf.nn.softplus(real) + tf.nn.softplus(-fake)) / num_replicas
    d_optimizer.apply_gradients(zip(tape.gradient(d_loss, d_vars), d_vars, strict=True))
    ge_optimizer.apply_gradients(zip(tape.gradient(ge_loss, ge_vars), ge_vars, strict=True))
    return d_loss

  return step


def _in_one_call(train_step: Callable[[tf.Tensor], tf.Tensor], steps: int) -> Callable[[], float]:
  @tf.function
  def call():
    losses = tf.TensorArray(tf.float32, steps)
    for i in tf.range(steps):
      losses = losses.write(i, train_step(i))
    return losses.stack()

  @tf.function
  def one_step():
    return train_step(0)[tf.newaxis]

  compiled = one_step if steps == 1 else call
  return lambda: float(compiled().numpy()[-1])
