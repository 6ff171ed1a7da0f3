"""The accuracy of `replicator.tools.scaling` on measured steps with 1, 2, 4 and 8 processes.

  python -m benchmarks.scaling_model [--processes=2,4,8] [--calls=15]

Three steps of different kinds are trained under 'multi_worker_mirrored': many small collectives,
one large collective, and much computation. Every process keeps its batch, and all share the cores
of this machine.

The prediction uses the time of the step on one process, the bytes that the doctor counts when it
traces the step, and one latency and one bandwidth, fitted to collectives that are timed separately
and have different sizes than those of the steps. It is compared with the median of the steps. For
both, the fastest of several rounds counts. Another table has the error of the fit.
"""

import dataclasses
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.record import Table
from replicator.tools.scaling.model import RING, Network, transfer_seconds

import numpy as np
from absl import app, flags

if TYPE_CHECKING:
  from replicator.step.hooks import Transfer

FLAGS = flags.FLAGS
flags.DEFINE_list("processes", ["2", "4", "8"], "Numbers of processes.")
flags.DEFINE_integer("rounds", 3, "Turns of every number of processes.", lower_bound=1)
flags.DEFINE_integer("calls", 15, "Steps that are timed.", lower_bound=2)
flags.DEFINE_string("found", None, "Only be a process of a cluster; the chief writes this file.")

BATCH = 64  # Examples per replica.
# The collectives that are timed separately, and their bytes per replica.
SIZES = {"all_reduce": [2 ** 11, 2 ** 15, 2 ** 19, 2 ** 21, 2 ** 23],
         "all_gather": [2 ** 11, 2 ** 15, 2 ** 18]}
CHAIN = 10  # Collectives in a row, so that the overhead of a call is small.


# ---- The steps ----------------------------------------------------------------------------------


def steps() -> dict[str, Callable[[str], None]]:
  """Returns a function that trains each step; call it where TensorFlow may be loaded."""
  import replicator

  import keras
  import tensorflow as tf

  class Regression(tf.Module):
    """A step that trains a network to output 0 for random examples of some shape."""

    def __init__(self, shape: list[int], layers: list):
      super().__init__()
      self.shape = shape
      self.network = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(1)])
      self.optimizer = replicator.wrap_optimizer(
          keras.optimizers.SGD(1e-3), self.network.trainable_variables)

    def loss(self, x: tf.Tensor) -> tf.Tensor:
      return tf.reduce_mean(tf.square(self.network(x, training=True)))

    def __call__(self) -> dict[str, tf.Tensor]:
      x = replicator.random.normal("x", [replicator.batch_size(), *self.shape])
      return {"loss": self.optimizer.minimize(self.loss, x)}

  dense = keras.layers.Dense
  conv = lambda filters: keras.layers.Conv2D(filters, 3, padding="same", activation="relu")
  normalized = lambda: [layer for _ in range(10) for layer in (
      dense(128, use_bias=False), replicator.GlobalBatchNorm(), keras.layers.ReLU())]
  made = {
      "21 small collectives": lambda: Regression([128], normalized()),
      "one of 13 MB": lambda: Regression(
          [1024], [dense(1024, activation="relu") for _ in range(3)]),
      "convolutions": lambda: Regression(
          [24, 24, 3], [conv(32), conv(32), conv(32), keras.layers.GlobalAveragePooling2D()]),
  }

  def trains(make: Callable) -> Callable[[str], None]:
    return lambda workdir: replicator.train(make, before_call=note_cpu_seconds, workdir=workdir)
  return {name: trains(make) for name, make in made.items()}


CPU_SECONDS: list[float] = []  # What this process had used before each call of a step.


def note_cpu_seconds(step: Any, number: int) -> None:
  del step, number
  CPU_SECONDS.append(time.process_time())


# ---- One process --------------------------------------------------------------------------------


def settings(strategy: str, processes: int) -> list[str]:
  return [f"Replicator.strategy = '{strategy}'", "train.steps = 1",
          f"train.global_batch_size = {BATCH * processes}"]


def measure(processes: int) -> dict:
  """Measures one of `processes`: its steps, and collectives alone."""
  from replicator.app import config
  from replicator.doctor import scaling
  from replicator.tools.scaling.cost import record
  found: dict = {"steps": {}, "collectives": []}
  if processes > 1:
    config.parse([], settings("multi_worker_mirrored", processes))
    found["collectives"] = collectives()
  for name, main in steps().items():
    if processes == 1:
      CPU_SECONDS.clear()
      alone = scaling.measure(main, [], settings("one_device", 1), FLAGS.calls)
      # All cores together; the first calls trace and compile.
      cpu_seconds = statistics.median(np.diff(CPU_SECONDS)[-FLAGS.calls + 1:])
      transfers = [(t.move, t.bytes) for t in alone.transfers]
      found["steps"][name] = (alone.seconds, cpu_seconds, transfers)
    else:
      found["steps"][name] = record(main, FLAGS.calls).seconds
  return found


def collectives() -> list[tuple[str, int, float]]:
  """Times collectives; returns the name, the bytes and the seconds of each."""
  import replicator

  import tensorflow as tf
  runner = replicator.Replicator()
  calls = {"all_reduce": replicator.all_mean, "all_gather": lambda x: replicator.all_gather(x)[0]}
  found = []
  for move, call in calls.items():
    for size in SIZES[move]:
      def chained(call=call, size=size) -> tf.Tensor:
        x = tf.zeros([size // 4])
        for _ in range(CHAIN):
          x = call(x)
        return x[0]
      times = []
      for _ in range(8):
        started = time.perf_counter()
        runner.run(chained)[0].numpy()
        times.append((time.perf_counter() - started) / CHAIN)
      found.append((move, size, statistics.median(times[2:])))
  return found


def be_one_process() -> None:
  cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))
  processes = len(cluster["cluster"]["worker"]) if cluster else 1
  found = measure(processes)
  if not cluster or cluster["task"]["index"] == 0:
    pathlib.Path(FLAGS.found).write_text(json.dumps(found))


# ---- The comparison -----------------------------------------------------------------------------


def run(processes: int) -> dict:
  """Runs some processes; returns the chief's measurements."""
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder) / "found.json"
    command = [sys.executable, "-m", "benchmarks.scaling_model", f"--calls={FLAGS.calls}",
               f"--found={output}"]
    if processes > 1:
      command = [sys.executable, "-m", "replicator", "launch", f"--workers={processes}", "--",
                 *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
      raise SystemExit(done.stdout + done.stderr)
    return json.loads(output.read_text())


def fastest(found: Sequence[dict]) -> dict:
  """Returns the minimum over several rounds, since other work can only slow them down."""
  collectives = zip(*(each["collectives"] for each in found), strict=True)  # Names, bytes, seconds.
  return {"steps": {name: min(each["steps"][name] for each in found) for name in found[0]["steps"]},
          "collectives": [min(rows) for rows in collectives]}


def fit(timed: "Sequence[tuple[Transfer, int, float]]") -> Network:
  """Fits a ring to timed collectives: `(transfer, replicas, seconds)`.

  Uses least squares of the relative errors; returns a free network if there are no collectives.
  """
  if not timed:
    return Network(math.inf, 0.0)
  one_hop, one_byte = Network(math.inf, 1.0, shape=RING), Network(1.0, 0.0, shape=RING)
  shares = np.array([[1.0, transfer_seconds(transfer, replicas, one_hop),
                      transfer_seconds(transfer, replicas, one_byte)]
                     for transfer, replicas, _ in timed])
  seconds = np.array([seconds for *_, seconds in timed])
  launch, latency, per_byte = np.linalg.lstsq(
      shares / seconds[:, np.newaxis], np.ones(len(timed)), rcond=None)[0]
  return Network(1 / per_byte, latency, launch, RING)


@dataclasses.dataclass(frozen=True)
class OnCores:
  """A model of a step whose processes share cores, which also do the sending.

  Each phase of the step, its computation or one collective, takes the longer of two times: that of
  a process with all cores to itself, and that of all cores for the work of all processes.

  Attributes:
    cores: the number of cores.
    seconds: the computation time of one process alone.
    cpu_seconds: the CPU time of that, over all cores.
    network: the ring between processes that have a core each.
    cpu_network: the ring, in seconds that a process keeps one core busy.
  """

  cores: int
  seconds: float
  cpu_seconds: float
  network: Network
  cpu_network: Network

  def step_seconds(self, transfers: "Iterable[Transfer]", processes: int) -> float:
    """Returns the seconds of a step with these `transfers`."""
    return self._phase(self.seconds, self.cpu_seconds, processes) + sum(
        self.transfer_seconds(transfer, processes) for transfer in transfers)

  def transfer_seconds(self, transfer: "Transfer", processes: int) -> float:
    """Returns the seconds of one collective."""
    return self._phase(transfer_seconds(transfer, processes, self.network),
                       transfer_seconds(transfer, processes, self.cpu_network), processes)

  def _phase(self, seconds: float, cpu_seconds: float, processes: int) -> float:
    return max(seconds, processes * cpu_seconds / self.cores)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.found:
    be_one_process()
    return
  from replicator.step.hooks import Transfer
  cores = os.cpu_count() or 1
  numbers = [1, *map(int, FLAGS.processes)]
  rounds = [[run(processes) for processes in numbers] for _ in range(FLAGS.rounds)]
  clusters = dict(zip(numbers, map(fastest, zip(*rounds, strict=True)), strict=True))
  alone = clusters.pop(1)["steps"]
  timed = [(Transfer(move, size), processes, seconds) for processes, found in clusters.items()
           for move, size, seconds in found["collectives"]]
  # With more processes than cores, all cores are always busy, and each process gets its share.
  networks = (fit([row for row in timed if row[1] <= cores]),
              fit([(t, n, seconds * cores / n) for t, n, seconds in timed if n > cores]))
  table = Table("the fitted networks", {"launch us": ".0f", "us a hop": ".0f", "MB/s": ",.0f"})
  for network, what in zip(networks, ("with a core each", "of a busy core"), strict=True):
    if network.bandwidth < math.inf:  # It was measured.
      table.add(what, 1e6 * network.launch, 1e6 * network.latency, network.bandwidth / 1e6)
  table = Table("collectives alone", {"bytes": ",d", "processes": "d", "ms": ".2f",
                                      "fitted ms": ".2f", "error": "+.0%"})
  messages = OnCores(cores, 0.0, 0.0, *networks)
  for transfer, n, seconds in timed:
    fitted = messages.transfer_seconds(transfer, n)
    table.add(transfer.move, transfer.bytes, n, 1e3 * seconds, 1e3 * fitted, fitted / seconds - 1)
  table = Table("steps", {"processes": "d", "ms": ".1f", "ms of cores": ".1f",
                          "predicted ms": ".1f", "error": "+.0%"})
  for name, (seconds, cpu_seconds, counted) in alone.items():
    step = OnCores(cores, seconds, cpu_seconds, *networks)
    # A call of several processes also averages what the step returns.
    transfers = [*(Transfer(*each) for each in counted), Transfer("all_reduce", 8)]
    table.add(name, 1, 1000 * seconds, 1000 * cpu_seconds, None, None)
    for processes, found in clusters.items():
      predicted = step.step_seconds(transfers, processes)
      measured = found["steps"][name]
      table.add(name, processes, 1000 * measured, None, 1000 * predicted, predicted / measured - 1)


if __name__ == "__main__":
  app.run(main)
