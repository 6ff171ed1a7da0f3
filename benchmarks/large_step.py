"""The startup cost of a step: building, tracing, the first call, and memory.

  python -m benchmarks.large_step [--replicas=1,2,4,8]
  python -m benchmarks.large_step --memory [--replicas=2,4] [--processes=2]

The step trains a GAN as large as BigGAN: 60 convolutions with batch norm over the global batch, 60
with spectral norm, 480 variables, and 150 million numbers including the two slots of Adam. Its
images are small, so that arithmetic does not dominate the first call.

Each row is a separate process with that many logical CPUs. CPU seconds are totals over all cores.
`trace` turns the step's Python into a graph; `first` is the first call minus a later one, which is
TensorFlow's work on the graph; memory is the peak resident size.
"""

import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.record import Table
from benchmarks.usage import measured_alone, resident_mib

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("replicas", ["1", "2", "4", "8"], "Numbers of replicas.")
flags.DEFINE_list("processes", [], "Numbers of processes with a replica each.")
flags.DEFINE_bool("memory", False, "Compare the memory with and without sharded state.")
flags.DEFINE_bool("sharded", False, "Shard the state over the replicas.")
flags.DEFINE_string("found", None, "Only be a process of a cluster; the chief writes this file.")
flags.DEFINE_bool("here", False, "Measure the first of the replicas in this process.")

CHANNELS, LAYERS = 215, 60
COLUMNS = {"variables": ",d", "operations": ",d", "build": ".1f", "trace": ".1f", "first": ".1f",
           "step": ".1f", "MiB": ",.0f"}


# ---- The steps ----------------------------------------------------------------------------------


def large() -> tuple[Callable, tuple[int, ...]]:
  """Returns a GAN with 60 convolutions per network, and the shape of a replica's batch."""
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
  """Measures CPU seconds to build, trace and call a step, its size, and the process's memory."""
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


# ---- Memory -------------------------------------------------------------------------------------


def held(strategy: str, replicas: int | None, sharded: bool) -> dict[str, float]:
  """Returns the MiB of a process and of the weights, and the seconds per step."""
  from replicator import Replicator
  from replicator.strategies.compiled_step import CompiledStep

  import gin
  import numpy as np

  gin.bind_parameter("wrap_optimizer.ema_decay", 0.999)
  gin.bind_parameter("wrap_optimizer.sharded", sharded)
  replicator = Replicator(strategy, logical_cpus=replicas)
  replicator.run(lambda: 0)
  before, seconds = resident_mib(), []
  with replicator.scope():
    step, shape = large()
  batch = np.ones([(replicas or 1) * shape[0], *shape[1:]], np.float32)
  compiled = CompiledStep(replicator, step, logs=True)
  for number in range(5):
    started = time.perf_counter()
    compiled(number, batch).fetch()
    seconds.append(time.perf_counter() - started)
  weights = sum(v.numpy().size for each in step.optimizers for v in each.variables_updated)
  return {"MiB": resident_mib() - before, "weights": 4 * weights / 2 ** 20,
          "seconds": statistics.median(seconds[1:]), "is_chief": not replicator.worker_id}


def of_processes(processes: int, sharded: bool) -> dict[str, float]:
  """Returns what the chief of some processes measures."""
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder) / "found.json"
    subprocess.run([sys.executable, "-m", "replicator", "launch", f"--workers={processes}", "--",
                    sys.executable, "-m", "benchmarks.large_step", f"--found={output}",
                    f"--sharded={sharded}"], stdout=subprocess.DEVNULL, check=True)
    return json.loads(output.read_text())


def compare_memory() -> None:
  """Prints a row for each number of replicas, in one process and in several."""
  table = Table("memory of a replica, compared with the formula",
                {"processes": "d", "sharded": "", "MiB each": ",.0f", "formula": ",.0f",
                 "seconds/step": ".1f"}, "replicas")
  for count, of_cluster in [*((int(n), False) for n in FLAGS.replicas),
                            *((int(n), True) for n in FLAGS.processes)]:
    for sharded in (False, True):
      found = of_processes(count, sharded) if of_cluster else measured_alone(
          "benchmarks.large_step", "--here", "--memory", f"--replicas={count}",
          f"--sharded={sharded}")
      formula = (2 + 3 / count if sharded else 5) * found["weights"]
      each = found["MiB"] if of_cluster else found["MiB"] / count
      table.add(str(count), count if of_cluster else 1, "yes" if sharded else "no", each, formula,
                found["seconds"])


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.found:
    found = held("multi_worker_mirrored", None, FLAGS.sharded)
    if found["is_chief"]:
      pathlib.Path(FLAGS.found).write_text(json.dumps(found))
    return
  if FLAGS.here:
    replicas = int(FLAGS.replicas[0])
    name = "mirrored" if replicas > 1 else "one_device"
    print(json.dumps(held(name, replicas, FLAGS.sharded) if FLAGS.memory else measure(replicas)))
    return
  if FLAGS.memory:
    compare_memory()
    return
  table = Table("CPU seconds, and MiB of memory", COLUMNS, "replicas")
  for replicas in FLAGS.replicas:
    found = measured_alone("benchmarks.large_step", "--here", f"--replicas={replicas}")
    table.add(replicas, *(found[name] for name in COLUMNS))


if __name__ == "__main__":
  app.run(main)
