"""A classifier of digits, trained by a loop for `tf.distribute` as in TensorFlow's guide."""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

BATCH, EPOCHS = 64, 20


def digits() -> tuple[tf.data.Dataset, tf.data.Dataset]:
  """Batches to train on, and batches to test on."""
  images, labels = load_digits(return_X_y=True)
  images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
  trained = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
  tested = tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:]))
  return trained.shuffle(1500).batch(BATCH, drop_remainder=True), tested.batch(BATCH)


class Classifier(tf.Module):
  """A network, its optimizer, and its steps on a replica."""

  def __init__(self):
    super().__init__()
    self.model = keras.Sequential([
        keras.Input([8, 8, 1]), layers.Conv2D(16, 3, activation="relu"), layers.Flatten(),
        layers.Dropout(0.3), layers.Dense(64, "relu"), layers.Dense(10)])
    self.optimizer = keras.optimizers.Adam(1e-3)
    self.optimizer.build(self.model.trainable_variables)
    self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    self.accuracy = keras.metrics.SparseCategoricalAccuracy()

  def train_step(self, inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
      losses = self.loss(labels, self.model(images, training=True))
      loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
    gradients = tape.gradient(loss, self.model.trainable_variables)
    self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
    return loss

  def test_step(self, inputs):
    images, labels = inputs
    self.accuracy.update_state(labels, self.model(images))


def main(folder: str, epochs: int = EPOCHS) -> Classifier:
  strategy = tf.distribute.MirroredStrategy()
  trained, tested = (strategy.experimental_distribute_dataset(each) for each in digits())
  with strategy.scope():
    classifier = Classifier()
    checkpoint = tf.train.Checkpoint(model=classifier.model, optimizer=classifier.optimizer)
  manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)
  checkpoint.restore(manager.latest_checkpoint)

  @tf.function
  def train_step(inputs):
    losses = strategy.run(classifier.train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

  @tf.function
  def test_step(inputs):
    strategy.run(classifier.test_step, args=(inputs,))

  for epoch in range(epochs):
    losses = [train_step(inputs) for inputs in trained]
    for inputs in tested:
      test_step(inputs)
    accuracy = classifier.accuracy.result()
    print(f"epoch {epoch}: loss {tf.reduce_mean(losses):.4f}, accuracy {accuracy:.4f}")
    classifier.accuracy.reset_state()
    manager.save()
  return classifier


if __name__ == "__main__":
  main("checkpoints")
