"""A tiny step for every layer and feature, which `tests.programs.capabilities` trains."""

import dataclasses
from collections.abc import Callable

import replicator
from replicator import random, schedules
from tests.programs.planted_bugs import WIDTH
from tests.programs.two_networks import TwoNetworks

import gin
import keras
import tensorflow as tf

UNITS = 4
NONFINITE_STEP = 1  # The step at which `Overflowing` has infinite gradients.


class Regression(tf.Module):
  """Learns a function of points by least squares.

  Args:
    layers: layers of the network, between its first and its last.
    rate: the learning rate.
    keras_options: options of the Keras optimizer.
    options: options of `wrap_optimizer`.
  """

  def __init__(self, *layers: keras.layers.Layer, rate: schedules.Number = 0.1,
               keras_options: dict | None = None, **options):
    super().__init__()
    self.network = keras.Sequential([
        keras.Input([WIDTH]), keras.layers.Dense(UNITS, activation="tanh"), *layers,
        keras.layers.Dense(1)])
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.SGD(rate, 0.5, name="sgd", **keras_options or {}),
        self.network.trainable_variables, **options)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {"loss": self.optimizer.minimize(self.loss, batch["x"], batch["y"])}

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The mean squared error of points `x [n, WIDTH]`, `y [n, 1]`."""
    return tf.reduce_mean(tf.square(tf.cast(self.network(x, training=True), y.dtype) - y))


class Averaged(Regression):
  """Also returns the loss of its averaged weights."""

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    losses = super().__call__(batch)
    with self.optimizer.averaged_weights():
      return {**losses, "averaged": self.loss(batch["x"], batch["y"])}


class Overflowing(Regression):
  """Has infinite gradients on one replica, at one step."""

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    loss = super().loss(x, y)
    overflows = tf.logical_and(tf.equal(replicator.step_number(), NONFINITE_STEP),
                               tf.equal(replicator.replica_id(), 0))
    # A square root has an infinite slope at zero. Neither the loss nor other gradients change.
    nothing = loss - tf.stop_gradient(loss)
    root = tf.sqrt(tf.where(overflows, nothing, tf.ones_like(loss)))
    return loss + root - tf.stop_gradient(root)


class Noisy(Regression):
  """Adds noise of every kind of draw to its points."""

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    noise = [random.normal("a", x.shape), random.uniform("b", x.shape),
             random.truncated_normal("a", x.shape),
             tf.cast(random.bernoulli("c", x.shape, 0.5), x.dtype)]
    return super().loss(x + 0.1 * tf.add_n(noise), y)


class KerasNoisy(Regression):
  """Adds noise of a Keras seed generator."""

  def __init__(self):
    super().__init__()
    self.seeds = keras.random.SeedGenerator(1)

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return super().loss(x + 0.1 * keras.random.normal(x.shape, seed=self.seeds), y)


class Collective(Regression):
  """Has a loss that uses every collective."""

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    outputs = self.network(x, training=True)
    replicas = replicator.num_replicas()
    everywhere = replicator.all_concat(outputs)  # [BATCH, 1]
    own = replicator.reduce_scatter(everywhere) / replicas
    swapped = replicator.all_to_all(replicator.all_to_all(outputs))
    weights = [replicator.broadcast(v.value, 0) for v in self.network.trainable_variables]
    terms = [
        replicator.all_sum(tf.reduce_sum(outputs)), replicator.all_mean(tf.reduce_mean(outputs)),
        replicator.all_min(tf.reduce_min(outputs)), replicator.all_max(tf.reduce_max(outputs)),
        tf.math.reduce_std(replicator.all_gather(outputs)), tf.reduce_mean(tf.square(own)),
        tf.add_n(replicator.map_gather(weights, tf.nn.l2_loss)),
        replicator.map_reduce(weights, tf.reduce_sum, "mean")]
    return tf.reduce_mean(tf.square(swapped - y)) + 0.1 * tf.add_n(terms)


class Remembering(Regression):
  """Learns from points of earlier steps, and from its outputs of earlier steps."""

  def __init__(self):
    super().__init__()
    self.points, self.outputs = replicator.ExamplePool(20, [WIDTH]), replicator.ExamplePool(40, [1])

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    outputs = self.network(x, training=True)
    past, is_filled = self.outputs.past()
    self.outputs.append(outputs)
    shown = self.network(self.points.exchange(x), training=True)
    differences = shown - tf.transpose(tf.where(is_filled[:, tf.newaxis], past, 0.0))
    return tf.reduce_mean(tf.square(outputs - y)) + 0.1 * tf.reduce_mean(tf.square(differences))


@gin.configurable
class Recomputed(Regression):
  """Computes layers with draws and states again for the gradient, if `recomputes`."""

  def __init__(self, recomputes: bool = False):
    super().__init__(replicator.GlobalBatchNorm(), replicator.Dropout(0.5),
                     replicator.SpectralNorm(keras.layers.Dense(UNITS)))
    self.block = replicator.recompute_grad(self.network) if recomputes else self.network

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(self.block(x, training=True) - y))


class Scheduled(Averaged):
  """Has a learning rate, an average and a weight of the loss that change at every step."""

  def __init__(self):
    self.weight = schedules.linear(0.01, 0.1, end=4)
    super().__init__(rate=self.weight, ema_decay=self.weight)

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return replicator.scheduled(self.weight) * super().loss(x, y)


class Frozen(Regression):
  """Trains its last layer only: the others are frozen, one with states among them."""

  def __init__(self):
    super().__init__(replicator.GlobalBatchNorm())
    for layer in self.network.layers[:-1]:
      layer.trainable = False


class Placed(keras.layers.Dense):
  """A dense layer on the logical device `device`."""

  def __init__(self, device: int):
    super().__init__(UNITS)
    self.device = device

  def build(self, input_shape):
    with replicator.logical_device(self.device):
      super().build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    with replicator.logical_device(self.device):
      return super().call(inputs)


@gin.configurable
def placed(device: int = 0) -> Placed:
  """Its place is set where there are several devices."""
  return Placed(device)


@dataclasses.dataclass(frozen=True)
class Feature:
  """A line of the table.

  Attributes:
    make: makes the step that uses the feature, for so many replicas.
    bindings: of gin, that switch it on.
    precision: `train.precision`.
    eager: whether it runs line by line, as with `--eager`.
  """

  make: Callable[[int], Callable]
  bindings: tuple[str, ...] = ()
  precision: str = "float64"
  eager: bool = False


FEATURES = {
    "`GlobalBatchNorm`": Feature(lambda _: Regression(replicator.GlobalBatchNorm())),
    "`GlobalBatchNorm(groups)`, one replica a group": Feature(lambda replicas: Regression(
        replicator.GlobalBatchNorm(groups=[[i] for i in range(replicas)]))),
    "`SpectralNorm`": Feature(lambda _: Regression(
        replicator.SpectralNorm(keras.layers.Dense(UNITS)))),
    "`Dropout`": Feature(lambda _: Regression(replicator.Dropout(0.5))),
    "Keras `BatchNormalization`": Feature(lambda _: Regression(keras.layers.BatchNormalization())),
    "Keras `BatchNormalization(synchronized=True)`": Feature(
        lambda _: Regression(keras.layers.BatchNormalization(synchronized=True))),
    "Keras `SpectralNormalization`": Feature(lambda _: Regression(
        keras.layers.SpectralNormalization(keras.layers.Dense(UNITS)))),
    "Keras `Dropout`": Feature(lambda _: Regression(keras.layers.Dropout(0.5))),
    "Keras `SeedGenerator`": Feature(lambda _: KerasNoisy()),
    "Keras optimizer with `use_ema`": Feature(
        lambda _: Regression(keras_options={"use_ema": True})),
    "`wrap_optimizer`": Feature(lambda _: Regression()),
    "`wrap_optimizer(clip_norm)`": Feature(lambda _: Regression(clip_norm=0.1)),
    "`wrap_optimizer(ema_decay)`": Feature(lambda _: Averaged(ema_decay=0.9)),
    "`wrap_optimizer(skip_nonfinite)`": Feature(lambda _: Overflowing(skip_nonfinite=True)),
    "`wrap_optimizer(sharded)`": Feature(
        lambda _: Averaged(ema_decay=0.9, clip_norm=0.1, sharded=True)),
    "`wrap_optimizer(bucket_mb)`": Feature(lambda _: Regression(bucket_mb=1e-5)),
    "several networks and optimizers": Feature(lambda _: TwoNetworks()),
    "`microbatch`": Feature(lambda _: Regression(), ("microbatch.n = 2",)),
    "`recompute_grad`": Feature(lambda _: Recomputed(), ("Recomputed.recomputes = True",)),
    "schedules": Feature(lambda _: Scheduled()),
    "frozen layers": Feature(lambda _: Frozen()),
    "random streams": Feature(lambda _: Noisy()),
    "collectives": Feature(lambda _: Collective()),
    "`ExamplePool`": Feature(
        lambda _: Remembering(), ("train.steps_per_call = 2", "microbatch.n = 2")),
    "`train.steps_per_call`": Feature(lambda _: Regression(), ("train.steps_per_call = 2",)),
    "`Replicator.jit_compile` (XLA)": Feature(
        lambda _: Regression(), ("Replicator.jit_compile = True",)),
    "`logical_device`, two devices a replica": Feature(
        lambda _: Regression(placed()),
        ("Replicator.devices_per_replica = 2", "placed.device = 1")),
    "`mixed_bfloat16`": Feature(lambda _: Regression(), precision="mixed_bfloat16"),
    "`mixed_float16`": Feature(lambda _: Regression(), precision="mixed_float16"),
    "`--eager`": Feature(lambda _: Regression(), eager=True),
}
