"""The cost of replication for a small training step, with this library and by hand.

  python -m benchmarks.replication_overhead [--units=128] [--depth=1] [--rounds=15]

Like the README's example, the step trains three networks with batch norm over the global batch: a
generator, an encoder, and a discriminator of their pairs. Their dense layers are small, so that
everything around the arithmetic counts. `benchmarks.replication_by_hand` has the step by hand.

Each contender runs in its own process, or two, because strategies over the same devices collide in
one process. They take turns of a few steps, round after round, so that a slow minute of the machine
slows all contenders. The tables have medians over the turns, and ratios of these medians. The
targets are for the same number of steps per compiled call on both sides; the tables also show one
step per call. A collective is one exchange between the replicas, of any number of tensors.
"""

import contextlib
import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Callable
from unittest import mock

from benchmarks import turns
from benchmarks.record import Table
from replicator.tools import launch

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 31, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("steps", 10, "Steps of one compiled call.", lower_bound=2)
flags.DEFINE_integer("calls", 3, "Compiled calls of one turn.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples of a step over all replicas.", lower_bound=2)
flags.DEFINE_integer("units", 64, "Units of a hidden layer.", lower_bound=1)
flags.DEFINE_integer("depth", 2, "Hidden layers of a network, each with batch norm.", lower_bound=1)
flags.DEFINE_integer("table", -1, "Only the table of this number; -1 for all.", lower_bound=-1)
flags.DEFINE_string("contender", None, "Only take turns as this contender, on request over stdin.")

IMAGE_SIZE, CODE_SIZE = 64, 16

Call = Callable[[], float]
"""Trains for some steps, and returns the last loss of the discriminator."""


@dataclasses.dataclass(frozen=True)
class Entry:
  """One way to run the step.

  Attributes:
    name: the `--contender` of its processes.
    title: its title in the table.
    target: the largest acceptable time of this library, as a multiple of the entry's time.
  """

  name: str
  title: str
  target: float | None = None


OURS = "this library"
TABLES: dict[str, list[Entry]] = {
    "two logical CPUs": [
        Entry("mirrored", OURS),
        Entry("hand-default", "MirroredStrategy by hand", 0.5),
        Entry("hand-hierarchical", "  HierarchicalCopyAllReduce", 0.8),
        Entry("hand-reduction", "  ReductionToOneDevice", 0.8)],
    "one device": [
        Entry("one_device", OURS),
        Entry("hand-plain", "plain tf.function", 1.05)],
    "two processes": [
        Entry("multi_worker_mirrored", OURS),
        Entry("hand-workers", "MultiWorkerMirroredStrategy by hand", 0.6)],
}


# ---- A contender's process ----------------------------------------------------------------------


def ours(strategy: str) -> Callable[[np.ndarray], Call]:
  """Returns a function that makes calls like `replicator.train`, on `[steps, n, features]`."""
  from replicator import GlobalBatchNorm, Replicator, random, wrap_optimizer
  from replicator.strategies.compiled_step import CompiledStep

  import keras
  import tensorflow as tf

  class BiGAN(tf.Module):
    def __init__(self):
      super().__init__()
      hidden = lambda: [keras.layers.Dense(FLAGS.units, use_bias=False), GlobalBatchNorm(),
                        keras.layers.ReLU()]
      mlp = lambda inputs, outputs: keras.Sequential([
          keras.Input([inputs]), *(layer for _ in range(FLAGS.depth) for layer in hidden()),
          keras.layers.Dense(outputs)])
      self.generator, self.encoder = mlp(CODE_SIZE, IMAGE_SIZE), mlp(IMAGE_SIZE, CODE_SIZE)
      self.discriminator = mlp(IMAGE_SIZE + CODE_SIZE, 1)
      self.ge_vars = self.generator.trainable_variables + self.encoder.trainable_variables
      self.d_vars = self.discriminator.trainable_variables
      self.ge_optimizer = wrap_optimizer(keras.optimizers.Adam(2e-4, beta_1=0.5), self.ge_vars)
      self.d_optimizer = wrap_optimizer(keras.optimizers.Adam(2e-4, beta_1=0.5), self.d_vars)

    def __call__(self, x):
      z = random.normal("z", [x.shape[0], CODE_SIZE])
      with tf.GradientTape(persistent=True) as tape:
        pairs = tf.concat([tf.concat([x, self.generator(z, training=True)], 0),
                           tf.concat([self.encoder(x, training=True), z], 0)], 1)
        real, fake = tf.split(self.discriminator(pairs, training=True), 2)
        d_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(fake))
        ge_loss = tf.reduce_mean(tf.nn.softplus(real) + tf.nn.softplus(-fake))
      self.d_optimizer.apply(tape.gradient(d_loss, self.d_vars), self.d_vars)
      self.ge_optimizer.apply(tape.gradient(ge_loss, self.ge_vars), self.ge_vars)
      return {"d": d_loss, "ge": ge_loss}

  replicator = Replicator(strategy, logical_cpus=2 if strategy == "mirrored" else None)

  def make(batches):
    with replicator.scope():
      function = CompiledStep(replicator, BiGAN(), len(batches), logs=True)
    images = tf.constant(batches[0] if len(batches) == 1 else batches)
    return lambda: float(function(0, images).fetch()[0]["d"][-1])
  return make


def collectives(call: Call) -> int:
  """Counts the exchanges between replicas in a step's graph, during its first call."""
  from replicator.internals import tensorflow_internals
  from replicator.step.collectives import primitives

  import tensorflow as tf
  from tensorflow.python.ops import collective_ops
  cpu = tf.config.list_physical_devices("CPU")[0]
  replicas = len(tf.config.get_logical_device_configuration(cpu) or [cpu])  # In this process.
  counted = []

  def counting(function: Callable, weight: float) -> Callable:
    def wrapped(*args, **kwargs):
      # The cross-device operations that are made of collective operations are counted as these.
      if "CollectiveAllReduce" not in type(args[0]).__name__:
        counted.append(weight)
      return function(*args, **kwargs)
    return wrapped

  with contextlib.ExitStack() as patches:
    for owner, names, weight in (
        (tf.distribute.CrossDeviceOps, ["reduce", "batch_reduce"], 1),
        (primitives, ["_in_memory"], 1),
        (tensorflow_internals, ["launched"], 1),
        # One on each replica.
        (collective_ops, ["all_reduce_v2", "all_gather_v2", "all_to_all_v2"], 1 / replicas)):
      for name in names:
        patches.enter_context(
            mock.patch.object(owner, name, counting(getattr(owner, name), weight)))
    call()
  return round(sum(counted))


def take_turns() -> None:
  """Runs in a contender's process: for every line, takes a turn with that many steps per call."""
  if FLAGS.contender in ("mirrored", "one_device", "multi_worker_mirrored"):
    make = ours(FLAGS.contender)
  else:
    from benchmarks import replication_by_hand
    make = replication_by_hand.prepare(FLAGS.contender, CODE_SIZE, FLAGS.units, FLAGS.depth)
  workers = len(json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", "1"))
  numbers = np.random.default_rng(0)
  calls = {steps: make(numbers.uniform(
      -1, 1, [steps, FLAGS.batch_size // workers, IMAGE_SIZE]).astype(np.float32))
      for steps in (FLAGS.steps, 1)}
  count = collectives(calls[1])
  for line in sys.stdin:
    call, number = calls[int(line)], FLAGS.calls * FLAGS.steps // int(line)
    if not np.isfinite(call()):  # Not timed: it compiles, or wakes up sleeping threads.
      raise SystemExit(f"{FLAGS.contender}: the loss is not finite")
    turns.answer(lambda call=call, number=number: [*(call() for _ in range(number)), count][-1])


# ---- The tables ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Timed:
  """An entry's milliseconds per step, by steps per call, and its collectives."""

  entry: Entry
  times: dict[int, list[float]]
  collectives: int = 0


def measure(entries: list[Entry], processes: int) -> list[Timed]:
  """Measures the entries of one table in turns."""
  found = [Timed(entry, {FLAGS.steps: [], 1: []}) for entry in entries]
  with contextlib.ExitStack() as running:
    contenders = [running.enter_context(contextlib.closing(turns.Contender(
        "benchmarks.replication_overhead", entry.name, os.cpu_count() or 1,
        tf_configs=launch.tf_configs([f"127.0.0.1:{port}" for port in launch.free_ports(processes)])
        if processes > 1 else [None])))
        for entry in entries]
    for turn in range(FLAGS.rounds + 1):
      for timed, contender in zip(found, contenders, strict=True):
        for steps, times in timed.times.items():
          milliseconds = 1000 * contender.turn(str(steps)) / (FLAGS.calls * FLAGS.steps)
          if turn:  # In the first turn, each starts and compiles.
            times.append(milliseconds)
        timed.collectives = int(contender.found)
  return found


def show(title: str, contenders: list[Timed]) -> None:
  """Prints one table, starting with the default of one step per call."""
  table = Table(f"{title}: milliseconds a step, and ours as a multiple",
                {"1 a call": ".2f", "ours is": ".2f", f"{FLAGS.steps} a call": ".2f",
                 f"ours of {FLAGS.steps}": ".2f", "target": "", "collectives": "d"})
  ours_is = {steps: statistics.median(times) for steps, times in contenders[0].times.items()}
  for contender in contenders:
    cells = []
    for steps in (1, FLAGS.steps):
      median = statistics.median(contender.times[steps])
      cells += [median, ours_is[steps] / median]
    target = f"<= {contender.entry.target}" if contender.entry.target else ""
    table.add(contender.entry.title, *cells, target, contender.collectives)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    take_turns()
    return
  print(f"three networks of {FLAGS.depth} hidden layers of {FLAGS.units}, "
        f"{FLAGS.batch_size} examples a step; "
        f"medians of {FLAGS.rounds} turns of {FLAGS.calls * FLAGS.steps} steps on "
        f"{os.cpu_count()} cores")
  for number, (title, entries) in enumerate(TABLES.items()):
    if FLAGS.table in (-1, number):
      show(title, measure(entries, 2 if title == "two processes" else 1))


if __name__ == "__main__":
  app.run(main)
