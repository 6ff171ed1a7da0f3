"""What `docs/explain/compared.md` says of `tf.distribute` and Keras alone."""

import pathlib
from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

X = np.random.default_rng(0).standard_normal([8, 4]).astype("float32")


class Mean(keras.Model):
  """Its loss is a mean that the step takes by itself."""

  def __init__(self):
    super().__init__()
    self.network = keras.Sequential([
        keras.Input([4]), keras.layers.Dense(1, kernel_initializer="ones")])

  def call(self, x):
    return self.network(x)

  def train_step(self, x):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(self(x)))
    weights = self.network.trainable_variables
    self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return {"loss": loss}


def two_replicas() -> tf.distribute.MirroredStrategy:
  return tf.distribute.MirroredStrategy(
      ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())


def change(strategy: tf.distribute.Strategy) -> np.ndarray:
  """How far one step of Keras `fit` moves the weights."""
  with strategy.scope():
    model = Mean()
    model.compile(keras.optimizers.SGD(0.1))
  model.fit(tf.data.Dataset.from_tensors(X), verbose=0, shuffle=False)
  return model.network.weights[0].numpy() - 1.0


def on_each(strategy: tf.distribute.Strategy, function: Callable[[], tf.Tensor]
            ) -> list[np.ndarray]:
  """What a compiled function returns on each replica."""
  outputs = tf.function(lambda: strategy.run(function))()
  return [each.numpy() for each in strategy.experimental_local_results(outputs)]


def test_keras_adds_up_the_gradients_of_a_mean_over_replicas():
  np.testing.assert_allclose(change(two_replicas()), 2 * change(tf.distribute.get_strategy()), 1e-5)


def test_dropout_of_keras_drops_the_same_on_every_replica():
  strategy = two_replicas()
  with strategy.scope():
    dropout = keras.layers.Dropout(0.5)
  first, second = on_each(strategy, lambda: dropout(tf.ones([8, 16]), training=True))
  np.testing.assert_array_equal(first, second)
  assert 0 < np.mean(first == 0) < 1


def test_batch_normalization_of_keras_sees_one_replica_only():
  strategy = two_replicas()
  with strategy.scope():
    norm = keras.layers.BatchNormalization()
    norm.build([None, 4])

  def normalized() -> tf.Tensor:
    """The same rows, moved by 10 on the second replica."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return norm(X + 10.0 * tf.cast(replica, tf.float32), training=True)

  first, second = on_each(strategy, normalized)
  np.testing.assert_allclose(first, second, atol=1e-3)


class Killed(keras.callbacks.Callback):
  """Ends a training in the middle of its second epoch."""

  def on_train_batch_end(self, batch, logs=None):
    if self.model.optimizer.iterations.numpy() == 6:
      raise KeyboardInterrupt


def fitted(folder: pathlib.Path, callbacks: Sequence[keras.callbacks.Callback] = ()
           ) -> np.ndarray:
  """The weights after two epochs of Keras `fit`, or of what is left of them in a backup."""
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dropout(0.5, seed=0), keras.layers.Dense(1)])
  model.compile(keras.optimizers.SGD(0.1), "mse")
  data = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).shuffle(8, seed=0).batch(2)
  model.fit(data, epochs=2, verbose=0, shuffle=False,
            callbacks=[keras.callbacks.BackupAndRestore(folder / "backup"), *callbacks])
  return model.get_weights()[0]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Of Keras.
def test_fit_with_backups_does_not_end_as_an_unbroken_one(tmp_path):
  unbroken = fitted(tmp_path / "a")
  np.testing.assert_array_equal(fitted(tmp_path / "b"), unbroken)
  with pytest.raises(KeyboardInterrupt):
    fitted(tmp_path / "c", [Killed()])
  assert np.abs(fitted(tmp_path / "c") - unbroken).max() > 1e-3


def test_a_distributed_iterator_is_refused_by_a_checkpoint():
  data = two_replicas().experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2))
  with pytest.raises(ValueError, match="DistributedIterator"):
    tf.train.Checkpoint(numbers=iter(data))
