"""Steps of two processes over a slow network: gradients in one vector, in buckets, as bfloat16.

  python -m benchmarks.slow_network [--network_mbit=200] [--latency_ms=1]

Needs root on Linux: each process runs in a network namespace of its own, on its own core, and a
proxy between them limits the bandwidth and delays each message. `predicted` is the model of
`replicator doctor --scaling`, from the time of a step of one process alone, and the time of a small
and of a large sum over this network. `tf.distribute` is a step by hand, with Keras' optimizer and
its means over replicas.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.record import Table
from benchmarks.slow_link import HOSTS, slow_link
from replicator.tools.launch import free_ports

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_float("network_mbit", 200.0, "Bandwidth in each direction, in 1e6 bits a second.")
flags.DEFINE_float("latency_ms", 1.0, "One way.")
flags.DEFINE_list("models", ["ResNet-20", "BigGAN", "dense layers"], "Which.")
flags.DEFINE_integer("steps", 9, "Steps that are timed.", lower_bound=1)
flags.DEFINE_string("alone", None, "Only be a process of this model and the way after a slash.")

HALF = "communication_dtype"
WAYS: dict[str, dict[str, Any]] = {
    "one vector": {}, "buckets of 4 MB": {"bucket_mb": 4.0},
    "buckets of 1 MB": {"bucket_mb": 1.0}, "buckets of 0.25 MB": {"bucket_mb": 0.25},
    "bfloat16": {HALF: "bfloat16"},
    "bfloat16, buckets of 1 MB": {HALF: "bfloat16", "bucket_mb": 1.0}}
BY_HAND = "tf.distribute"
SIZES = (2 ** 10, 2 ** 22)  # Bytes of the sums that are timed alone.
CHAIN = 8  # Sums in a row, so that the overhead of a call is small.
Loss = Callable[[], Any]


# ---- In one process -----------------------------------------------------------------------------


def resnet20() -> list[tuple[list, Loss]]:
  """Returns what an optimizer owns, and its loss on 16 images."""
  from models.vision.classification.resnet import ResNet

  import keras
  import tensorflow as tf

  network = ResNet(10, depth=20)
  images, labels = tf.random.stateless_normal([16, 32, 32, 3], [0, 0]), tf.range(16) % 10
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  return [(network.trainable_variables, lambda: loss(labels, network(images, training=True)))]


def biggan() -> list[tuple[list, Loss]]:
  """Returns what each of two optimizers owns, and its loss on 4 images."""
  from models.gan.networks.biggan import BigGANDiscriminator, BigGANGenerator

  import tensorflow as tf

  generator = BigGANGenerator(32, latent_dim=64, base_channels=32)
  discriminator = BigGANDiscriminator(32, base_channels=32)
  z, real = (tf.random.stateless_normal(shape, [0, 0]) for shape in ([4, 64], [4, 32, 32, 3]))
  draw = lambda: generator(z, training=True)
  judge = lambda images: tf.reduce_mean(discriminator(images, training=True))
  return [(discriminator.trainable_variables, lambda: judge(draw()) - judge(real)),
          (generator.trainable_variables, lambda: -judge(draw()))]


def dense() -> list[tuple[list, Loss]]:
  """Returns what an optimizer owns, and its loss on 256 examples; it has no batch norm."""
  import keras
  import tensorflow as tf

  network = keras.Sequential([keras.Input([1024]), *(
      layer for _ in range(8)
      for layer in (keras.layers.Dense(1024, "gelu"), keras.layers.LayerNormalization()))])
  x = tf.random.stateless_normal([256, 1024], [0, 0])
  return [(network.trainable_variables, lambda: tf.reduce_mean(tf.square(network(x) - x)))]


MODELS = {"ResNet-20": resnet20, "BigGAN": biggan, "dense layers": dense}


def with_replicator(model: str, way: str) -> dict[str, Any]:
  """Trains some steps; returns the median of their seconds, and the transfers of a step."""
  import replicator
  from replicator.strategies.compiled_step import CompiledStep
  from replicator.tools.scaling.cost import TransferCount

  import keras
  import tensorflow as tf

  runner = replicator.Replicator(
      "multi_worker_mirrored" if "TF_CONFIG" in os.environ else "one_device")
  with runner.scope():
    parts = [(replicator.wrap_optimizer(keras.optimizers.SGD(1e-4), variables, **WAYS[way]), loss)
             for variables, loss in MODELS[model]()]
  count = TransferCount()
  step = CompiledStep(runner, lambda: {"loss": tf.add_n(
      [optimizer.minimize(loss) for optimizer, loss in parts])}, logs=True, hooks=[count])
  return {"seconds": timed(lambda: step(0).fetch()), "transfers": [
      (each.move, each.bytes, each.parts) for each in count.found]}


def sums() -> dict[str, Any]:
  """Returns the seconds of a small and of a large sum over the two processes."""
  import replicator
  from replicator.strategies.compiled_step import CompiledStep

  import tensorflow as tf

  runner = replicator.Replicator("multi_worker_mirrored")

  def chain(size: int) -> dict[str, tf.Tensor]:
    x = tf.ones([size // 4])
    for _ in range(CHAIN):
      x = replicator.all_sum(x)
    return {"sum": x[0]}

  seconds = []
  for size in SIZES:
    step = CompiledStep(runner, functools.partial(chain, size), logs=True)
    seconds.append(timed(lambda step=step: step(0).fetch()) / CHAIN)
  return {"seconds": seconds}


def by_hand(model: str) -> dict[str, Any]:
  """Trains the same steps with `tf.distribute` and Keras alone."""
  import keras
  import tensorflow as tf

  strategy = tf.distribute.MultiWorkerMirroredStrategy()
  with strategy.scope():
    parts = [(variables, keras.optimizers.SGD(1e-4), loss) for variables, loss in MODELS[model]()]
    for variables, optimizer, _ in parts:
      optimizer.build(variables)

  def replica() -> Any:
    losses = []
    for variables, optimizer, loss_of in parts:
      with tf.GradientTape() as tape:
        loss = loss_of() / strategy.num_replicas_in_sync
      optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
      losses.append(loss)
    return tf.stack(losses)

  step = tf.function(lambda: strategy.run(replica))
  return {"seconds": timed(lambda: strategy.experimental_local_results(step())[0].numpy())}


def timed(call: Callable[[], Any]) -> float:
  """Returns the median of the seconds of a call."""
  seconds = []
  for _ in range(3 + FLAGS.steps):
    started = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - started)
  return statistics.median(seconds[3:])


# ---- The comparison -----------------------------------------------------------------------------


def start(model: str, way: str, number: int, addresses: list[str], output: Any) -> subprocess.Popen:
  """Starts a process on its own core; in a namespace if there are addresses."""
  command = ["taskset", "--cpu-list", str(number), sys.executable, "-m", "benchmarks.slow_network",
             f"--alone={model}/{way}", f"--steps={FLAGS.steps}"]
  environment = dict(os.environ)
  if addresses:
    command = ["ip", "netns", "exec", HOSTS[number], *command]
    environment["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}})
  return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def measured(model: str, way: str, addresses: list[str]) -> dict[str, Any]:
  """Returns what the first process found; exits with its output if one failed."""
  with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as other:
    processes = [start(model, way, number, addresses, file) for number, file in enumerate(
        [output, other][:max(1, len(addresses))])]
    codes = [process.wait() for process in processes]
    for file in (output, other):
      file.seek(0)
    said = output.read()
    if any(codes):
      sys.exit(said + other.read())
  return json.loads(said.splitlines()[-1])


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.alone:
    model, _, way = FLAGS.alone.partition("/")
    print(json.dumps(sums() if model == "sums" else
                     by_hand(model) if way == BY_HAND else with_replicator(model, way)))
    return
  from replicator.step.hooks import Transfer
  from replicator.tools.scaling.model import RING, Network, step_seconds

  def measured_there(model: str, way: str) -> dict[str, Any]:
    with slow_link(FLAGS.network_mbit * 1e6 / 8, FLAGS.latency_ms / 1e3, free_ports(1)[0]) as them:
      return measured(model, way, them)

  small, large = measured_there("sums", "")["seconds"]
  # On two replicas a sum sends as many bytes as it has.
  network = Network((SIZES[1] - SIZES[0]) / (large - small), 0.0, small, RING)
  print(f"a small sum takes {1e3 * small:.1f} ms; {network.bandwidth / 1e6:.1f} MB/s")
  table = Table(f"milliseconds a step, {FLAGS.network_mbit:g} Mbit/s, {FLAGS.latency_ms:g} ms",
                {"step": ".0f", "predicted": ".0f", "collectives": "d", "MB": ".2f"})
  for model in FLAGS.models:
    alone = measured(model, "one vector", [])["seconds"]
    table.add(f"{model}, one process", 1e3 * alone, None, None, None)
    for way in [*WAYS, BY_HAND]:
      found = measured_there(model, way)
      transfers = [Transfer(*each) for each in found.get("transfers", [])]
      table.add(f"{model}, {way}", 1e3 * found["seconds"], *([
          1e3 * step_seconds(alone, transfers, 2, network), len(transfers),
          sum(each.bytes or 0 for each in transfers) / 1e6] if transfers else [None] * 3))


if __name__ == "__main__":
  app.run(main)
