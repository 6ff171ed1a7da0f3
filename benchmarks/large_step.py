"""The cost of a step before it runs: to build, to trace, the first call, and memory.

  python -m benchmarks.large_step [--replicas=1,2,4,8]

The step is that of a GAN of BigGAN's size: 60 convolutions with batch norm over the global batch,
60 with spectral norm, 480 variables, and 150 million parameters with the two slots of Adam. Its
images are small, so that the first call is not a matter of arithmetic.

Each row is a process of its own, with that many logical CPUs. Its CPU seconds are those of all
cores. `trace` compiles the Python of the step to a graph; `first` is the first call less a later
one, which is what TensorFlow does to the graph; memory is the highest resident size.
"""

import itertools
import json
import time
from collections.abc import Callable

from benchmarks.usage import measured_alone, resident_mib

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("replicas", ["1", "2", "4", "8"], "Numbers of replicas.")
flags.DEFINE_bool("here", False, "Measure the first of the replicas in this process.")

CHANNELS, LAYERS = 215, 60
COLUMNS = ("variables", "operations", "build", "trace", "first", "step", "MiB")


# ---- The steps ----------------------------------------------------------------------------------


def large() -> tuple[Callable, tuple[int, ...]]:
  """A GAN with 60 convolutions in each network, and the shape of a replica's batch."""
  import replicator

  import keras
  import tensorflow as tf

  convolution = lambda **options: keras.layers.Conv2D(CHANNELS, 3, padding="same", **options)

  class LargeGAN(tf.Module):
    def __init__(self):
      super().__init__()
      shape = [4, 4, CHANNELS]
      self.generator = keras.Sequential([keras.Input(shape)] + [
          layer for _ in range(LAYERS) for layer in (
              convolution(use_bias=False), replicator.GlobalBatchNorm(), keras.layers.ReLU())])
      self.discriminator = keras.Sequential([keras.Input(shape)] + [
          layer for _ in range(LAYERS) for layer in (
              replicator.SpectralNorm(convolution()), keras.layers.ReLU())])
      self.optimizers = [replicator.wrap_optimizer(keras.optimizers.Adam(1e-4),
                                                   network.trainable_variables)
                         for network in (self.generator, self.discriminator)]

    def __call__(self, batch: tf.Tensor) -> dict[str, tf.Tensor]:
      with tf.GradientTape(persistent=True) as tape:
        fake = self.discriminator(self.generator(batch, training=True), training=True)
        real = self.discriminator(batch, training=True)
        losses = [-tf.reduce_mean(fake), tf.reduce_mean(fake) - tf.reduce_mean(real)]
      for network, optimizer, loss in zip(
          (self.generator, self.discriminator), self.optimizers, losses, strict=True):
        variables = network.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
      return dict(zip(("g", "d"), losses, strict=True))

  return LargeGAN(), (2, 4, 4, CHANNELS)


# ---- One process --------------------------------------------------------------------------------


def measure(replicas: int) -> dict[str, float]:
  """CPU seconds to build, trace and call a step, its size, and the process' memory."""
  from replicator import Replicator
  from replicator.step.variables import variables_of
  from replicator.strategies.compiled_step import CompiledStep

  import numpy as np

  seconds = [time.process_time()]
  replicator = Replicator("mirrored" if replicas > 1 else "one_device", logical_cpus=replicas)
  with replicator.scope():
    step, shape = large()
  variables = len(list(variables_of(step)))
  batch = np.ones([replicas * shape[0], *shape[1:]], np.float32)
  compiled = CompiledStep(replicator, step, logs=True)
  seconds.append(time.process_time())
  compiled.trace(batch)
  seconds.append(time.process_time())
  for number in range(2):
    compiled(number, batch).fetch()
    seconds.append(time.process_time())
  build, trace, first, later = (b - a for a, b in itertools.pairwise(seconds))
  return {"variables": variables, "operations": len(compiled.graph.get_operations()),
          "build": build, "trace": trace, "first": first - later, "step": later,
          "MiB": resident_mib()}


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.here:
    print(json.dumps(measure(int(FLAGS.replicas[0]))))
    return
  print("CPU seconds, and MiB of memory")
  print(f"{'replicas':>8} " + " ".join(f"{name:>10}" for name in COLUMNS))
  for replicas in FLAGS.replicas:
    found = measured_alone("benchmarks.large_step", "--here", f"--replicas={replicas}")
    numbers = " ".join(f"{found[name]:10.{1 if found[name] % 1 else 0}f}" for name in COLUMNS)
    print(f"{replicas:>8} {numbers}", flush=True)


if __name__ == "__main__":
  app.run(main)
