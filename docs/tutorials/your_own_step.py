# %% [markdown]
# # Your own step
#
# This page ports a GAN from a plain Keras loop to a replica step, and checks that it trains the
# same on several replicas. Then it trains BYOL, which needs a teacher with averaged weights and two
# views of each image.
#
# ## A plain loop
#
# Here is a small GAN on the 8x8 digits of scikit-learn, as one would write it with Keras alone.

# %%
import os
import tempfile

import replicator  # First: it keeps the log of TensorFlow quiet.

os.chdir(tempfile.mkdtemp())
two = replicator.Replicator("mirrored", logical_cpus=2)  # Splits the CPU, before TensorFlow starts.

# %%
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

images = load_digits().images.reshape(-1, 64).astype("float32") / 8 - 1


def mlp(inputs, outputs):
  return keras.Sequential([
      keras.Input([inputs]), keras.layers.Dense(128), keras.layers.BatchNormalization(),
      keras.layers.ReLU(), keras.layers.Dense(outputs)])


generator, discriminator = mlp(16, 64), mlp(64, 1)
g_optimizer, d_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)


def plain_step(x):
  z = tf.random.normal([x.shape[0], 16])
  with tf.GradientTape(persistent=True) as tape:
    real = discriminator(x, training=True)
    fake = discriminator(generator(z, training=True), training=True)
    d_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(fake))
    g_loss = tf.reduce_mean(tf.nn.softplus(-fake))
  d_optimizer.apply_gradients(zip(tape.gradient(d_loss, discriminator.trainable_variables),
                                  discriminator.trainable_variables, strict=True))
  g_optimizer.apply_gradients(zip(tape.gradient(g_loss, generator.trainable_variables),
                                  generator.trainable_variables, strict=True))
  return {"loss/discriminator": d_loss, "loss/generator": g_loss}


for number in range(3):
  print({name: float(loss) for name, loss in plain_step(images[64 * number:][:64]).items()})

# %% [markdown]
# ## The same as a step
#
# The function becomes the `__call__` of a `tf.Module`, and what it trains becomes attributes, so
# that checkpoints keep it. The input, the log and the saving are the library's. `%%writefile`
# writes the cell to a file. Its `BatchNormalization` and its `tf.random` are still those of the
# loop.

# %%
# %%writefile first_try.py
from models.vision.builtin.digits import Digits
from replicator import app, train, wrap_optimizer
import keras
import tensorflow as tf


class GAN(tf.Module):
  """The plain loop, as it was."""

  def __init__(self):
    super().__init__()
    mlp = lambda inputs, outputs: keras.Sequential([
        keras.Input([inputs]), keras.layers.Dense(128), keras.layers.BatchNormalization(),
        keras.layers.ReLU(), keras.layers.Dense(outputs)])
    self.generator, self.discriminator = mlp(16, 64), mlp(64, 1)
    self.g_optimizer = wrap_optimizer(keras.optimizers.Adam(1e-3),
                                      self.generator.trainable_variables)
    self.d_optimizer = wrap_optimizer(keras.optimizers.Adam(1e-3),
                                      self.discriminator.trainable_variables)

  def __call__(self, batch):
    x = tf.reshape(tf.cast(batch["image"], keras.config.floatx()) / 127.5 - 1, [-1, 64])
    z = tf.random.normal([x.shape[0], 16], dtype=x.dtype)
    with tf.GradientTape(persistent=True) as tape:
      real = self.discriminator(x, training=True)
      fake = self.discriminator(self.generator(z, training=True), training=True)
      d_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(fake))
      g_loss = tf.reduce_mean(tf.nn.softplus(-fake))
    for optimizer, loss in ((self.d_optimizer, d_loss), (self.g_optimizer, g_loss)):
      optimizer.apply(tape.gradient(loss, optimizer.variables_updated))
    return {"loss/discriminator": d_loss, "loss/generator": g_loss}


if __name__ == "__main__":
  app.run(lambda workdir: train(GAN, Digits(), workdir=workdir))

# %% [markdown]
# ## Ask the doctor
#
# The doctor trains the first steps on one replica and on several, in float64, with the same seed
# and the same batches, and compares every number. It finds what does not survive the split:

# %%
# !replicator doctor --experiment=first_try.py --steps=2

# %% [markdown]
# `replicator.random` draws for each example of the global batch, and `GlobalBatchNorm` takes its
# statistics over all of it. Nothing else changes:

# %%
text = open("first_try.py").read()
text = text.replace("import app, train", "import GlobalBatchNorm, app, random, train")
text = text.replace("keras.layers.BatchNormalization()", "GlobalBatchNorm()")
text = text.replace("tf.random.normal([x.shape[0], 16], dtype=x.dtype)",
                    'random.normal("z", [x.shape[0], 16])')
_ = open("gan.py", "w").write(text)

# %%
# !replicator doctor --experiment=gan.py --steps=2
assert _exit_code == 0

# %% [markdown]
# ## BYOL: a teacher, and two views
#
# BYOL (Grill et al. 2020) learns features without labels. A network predicts, from one view of an
# image, what its teacher sees in another view. The teacher has the averaged weights of the network:
# `ema_decay` keeps them, and `averaged_weights()` computes with them. `TwoViews` gives both views
# of each image in one batch.

# %%
from models.vision.augmentation.random_view import Augmentation, Augmented
from models.vision.augmentation.random_view import TwoViews
from models.vision.builtin.digits import Digits
from models.vision.images.image_source import to_unit_range
from replicator import GlobalBatchNorm, train, wrap_optimizer


class BYOL(tf.Module):
  """Predicts the teacher's projection of the other view."""

  def __init__(self):
    super().__init__()
    mlp = lambda inputs, outputs: keras.Sequential([
        keras.Input([inputs]), keras.layers.Dense(128), GlobalBatchNorm(), keras.layers.ReLU(),
        keras.layers.Dense(outputs)])
    self.encoder, self.predictor = mlp(64, 32), mlp(32, 32)
    self.optimizer = wrap_optimizer(
        keras.optimizers.Adam(1e-3),
        self.encoder.trainable_variables + self.predictor.trainable_variables, ema_decay=0.99)

  def __call__(self, batch):
    a, b = (tf.reshape(to_unit_range(batch[name], keras.config.floatx()), [-1, 64])
            for name in ("image", "other"))
    with self.optimizer.averaged_weights():
      targets = [tf.math.l2_normalize(self.encoder(x, training=True), 1) for x in (b, a)]
    with tf.GradientTape() as tape:
      losses = []
      for x, target in zip((a, b), targets, strict=True):
        predicted = tf.math.l2_normalize(self.predictor(self.encoder(x, training=True),
                                                        training=True), 1)
        losses.append(2 - 2 * tf.reduce_mean(tf.reduce_sum(predicted * target, 1)))
      loss = tf.add_n(losses) / 2
    self.optimizer.apply(tape.gradient(loss, self.optimizer.variables_updated))
    return {"loss": loss}


def views():
  return TwoViews(lambda: Augmented(Digits, lambda: Augmentation(
      scale=(0.6, 1.0), flip=0.0, brightness=0.4, contrast=0.4)))


# %% [markdown]
# ## Equal on one replica and on two
#
# The same 40 steps on one device, and on two replicas of half the batch, in float64:

# %%
import json


def losses_of(strategy):
  train(BYOL, views(), workdir=f"runs/{strategy}", steps=40, global_batch_size=128,
        precision="float64", log_every=1, eval_every=0,
        replicator=replicator.Replicator(strategy, logical_cpus=2))
  return [json.loads(line)["loss"] for line in open(f"runs/{strategy}/metrics.jsonl")]


one, two = losses_of("one_device"), losses_of("mirrored")

# %%
difference = max(abs(a - b) / abs(a) for a, b in zip(one, two, strict=True))
print(f"loss at step 1: {one[0]:.6f}, at step {len(one)}: {one[-1]:.6f}")
print(f"largest relative difference of a loss: {difference:.1e}")
assert difference < 1e-9

# %% [markdown]
# Next: [one device to many](one_device_to_many.py). [The contract of a step](../guide/step.md) has
# all that it can use, and [the doctor](../explain/doctor.md) what it finds.
