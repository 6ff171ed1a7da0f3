"""Measures the peak memory and the time of one model on two replicas with each way to save memory.

  python -m benchmarks.memory_ways [--batch_size=1024] [--width=2048] [--of='none,sharded state']

The model is a chain of 24 blocks, each with a dense layer, a layer normalization and a GELU. It is
trained by Adam with averaged weights. `batch_size` is that of a replica. Each row is a separate
process with two replicas on logical CPUs. Its memory is half the growth of its peak resident size
since before it made the model. The loss of the last step is the same in all rows, except for
rounding.

With two logical devices per replica, the memory is the sum of both.

With `--limit_mib`, a process cannot allocate more than that. A row without numbers needed more.
"""

import contextlib
import json
import resource
import subprocess
import time
from collections.abc import Callable

from benchmarks.record import Table
from benchmarks.usage import measured_alone, resident_mib

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 1024, "Examples per replica.", lower_bound=4)
flags.DEFINE_integer("width", 2048, "The size of an example and of each layer.", lower_bound=1)
flags.DEFINE_integer("steps", 1, "Timed steps.", lower_bound=1)
flags.DEFINE_integer("limit_mib", None, "The largest memory of a process, in MiB.")
flags.DEFINE_string("alone", None, "Measure this way in this process.")

BLOCKS = 24
WAYS = {"none": {}, "micro-batches": {"microbatches": 4}, "recomputation": {"recomputes": True},
        "sharded state": {"sharded": True},
        "all three": {"microbatches": 4, "recomputes": True, "sharded": True},
        "logical devices": {"devices": 2}}
flags.DEFINE_list("of", list(WAYS), "The ways.")


def measure(microbatches: int = 1, recomputes: bool = False, sharded: bool = False,
            devices: int = 1) -> dict[str, float]:
  """Returns the MiB per replica, the seconds per step, and the last loss."""
  import replicator
  from replicator.step import microbatch  # noqa: F401  (for gin)
  from replicator.strategies.compiled_step import CompiledStep

  import gin
  import keras
  import numpy as np
  import tensorflow as tf

  gin.bind_parameter("microbatch.n", microbatches)
  cluster = replicator.Replicator("mirrored", logical_cpus=2 * devices, devices_per_replica=devices)
  cluster.run(lambda: 0)
  before, width = resident_mib(), FLAGS.width
  keras.utils.set_random_seed(0)

  def device_of(number: int) -> contextlib.AbstractContextManager[None]:
    return replicator.logical_device(number * devices // BLOCKS)

  def block(number: int) -> keras.Sequential:
    with device_of(number):
      return keras.Sequential([
          keras.Input([width]), keras.layers.Dense(width), keras.layers.LayerNormalization(),
          keras.layers.Activation("gelu")])

  class Chain(tf.Module):
    def __init__(self):
      super().__init__()
      self.blocks = [block(number) for number in range(BLOCKS)]
      self.optimizer = replicator.wrap_optimizer(
          keras.optimizers.Adam(1e-4), ema_decay=0.999, sharded=sharded,
          variables=[v for each in self.blocks for v in each.trainable_variables])

    def __call__(self, batch: tf.Tensor) -> dict[str, tf.Tensor]:
      def loss_of(x: tf.Tensor) -> tf.Tensor:
        y = x
        for number, each in enumerate(self.blocks):
          call: Callable = replicator.recompute_grad(each) if recomputes else each
          with device_of(number):
            y = call(y, training=True)
        return tf.reduce_mean(tf.square(y - x))
      return {"loss": self.optimizer.minimize(loss_of, batch)}

  with cluster.scope():
    step = CompiledStep(cluster, Chain(), logs=True)
  batch = np.random.default_rng(0).normal(size=[2 * FLAGS.batch_size, width]).astype(np.float32)
  step(0, batch).fetch()
  started = time.perf_counter()
  for number in range(FLAGS.steps):
    scalars, _ = step(1 + number, batch).fetch()
  seconds = (time.perf_counter() - started) / FLAGS.steps
  return {"mib": (resident_mib() - before) / 2, "seconds": seconds,
          "loss": float(scalars["loss"][-1])}


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.alone:
    if FLAGS.limit_mib:
      resource.setrlimit(resource.RLIMIT_DATA, (FLAGS.limit_mib * 2**20,) * 2)
    print(json.dumps(measure(**WAYS[FLAGS.alone])))
    return
  table = Table(f"one model on two replicas, {FLAGS.batch_size} examples per replica",
                {"MiB per replica": ",.0f", "seconds/step": ".2f", "loss": ".8f"})
  command = [f"--width={FLAGS.width}", f"--batch_size={FLAGS.batch_size}", f"--steps={FLAGS.steps}",
             *([f"--limit_mib={FLAGS.limit_mib}"] if FLAGS.limit_mib else [])]
  for name in FLAGS.of:
    try:
      found = measured_alone("benchmarks.memory_ways", f"--alone={name}", *command)
    except subprocess.CalledProcessError:
      if not FLAGS.limit_mib:
        raise
      table.add(name, None, None, None)
    else:
      table.add(name, found["mib"], found["seconds"], found["loss"])


if __name__ == "__main__":
  app.run(main)
