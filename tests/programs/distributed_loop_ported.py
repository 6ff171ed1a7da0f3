"""A classifier of digits, trained by a loop for `tf.distribute` as in TensorFlow's guide."""

import replicator
from replicator import app

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
  return trained.shuffle(1500, seed=0).repeat().batch(BATCH), tested.batch(BATCH)


class Classifier(tf.Module):
  """A network, its optimizer, and its steps on a replica."""

  def __init__(self):
    super().__init__()
    self.model = keras.Sequential([
        keras.Input([8, 8, 1]), layers.Conv2D(16, 3, activation="relu"), layers.Flatten(),
        replicator.Dropout(0.3), layers.Dense(64, "relu"), layers.Dense(10)])
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.Adam(1e-3), self.model.trainable_variables)
    self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def __call__(self, inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
      loss = self.loss(labels, self.model(images, training=True))
    gradients = tape.gradient(loss, self.model.trainable_variables)
    self.optimizer.apply(gradients, self.model.trainable_variables)
    return {"loss": loss}


def evaluate(classifier: Classifier) -> replicator.Evaluation:
  accuracy = keras.metrics.SparseCategoricalAccuracy()
  for images, labels in digits()[1]:
    accuracy.update_state(labels, classifier.model(images))
  return replicator.Evaluation({"accuracy": float(accuracy.result())})


if __name__ == "__main__":
  app.run(lambda workdir: replicator.train(
      Classifier, lambda: digits()[0], evaluate, workdir=workdir, steps=EPOCHS * 1500 // BATCH))
