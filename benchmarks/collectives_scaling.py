"""The cost of a collective on 2 to 16 replicas, with this library and with `tf.distribute`.

  python -m benchmarks.collectives_scaling [--replicas=2,4,8,16] [--kib=4,64,1024,16384]
  replicator launch --workers=4 -- python -m benchmarks.collectives_scaling

The replicas are logical CPUs of one process, or the processes of a cluster. In one process the
peers are `tf.distribute`'s two ways for devices that share memory: the default, a ring, and
ReductionToOneDevice. Each row is one collective on one number of replicas and one size, the size
of the tensor that each replica contributes.

All contenders take turns in one process, so that a slow minute slows them all. The table has the
CPU time of one collective, summed over all cores (of this process, in a cluster), its wall time,
both medians over the turns, and the bytes that the operations of its graph write, as a multiple of
the size. The ratios compare with the faster peer. A collective without a peer has no ratio.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks.record import Table
from benchmarks.usage import measured_alone

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("replicas", ["2", "4", "8", "16"], "Numbers of replicas in one process.")
flags.DEFINE_list("kib", ["4", "64", "1024", "16384"], "Sizes of the tensors, in KiB.")
flags.DEFINE_integer("turns", 15, "Turns of every contender.", lower_bound=1)
flags.DEFINE_bool("here", False, "Only measure the first number of replicas, and print JSON.")

IN_A_ROW = 4  # Collectives of one compiled call.
# Operations that pass on their input.
_FORWARDING = {"Identity", "IdentityN", "Reshape", "Placeholder", "Const", "NoOp", "Shape",
               "EnsureShape", "Split", "SplitV", "ExpandDims", "StopGradient"}


class Contender:
  """One way to run a collective on the replicas of a strategy, each with a float32 `[n]`."""

  def __init__(self, strategy, collective: Callable, size: int):
    import tensorflow as tf

    def step(x: tf.Tensor) -> tf.Tensor:
      x = tf.identity(x)  # The argument has no device, and `all_reduce` between processes asks it.
      for _ in range(IN_A_ROW):  # The next begins with the result of the last.
        x = x + collective(x)[:1]
      return x[0]

    @tf.function(autograph=False)
    def call(x):
      return strategy.run(step, args=(x,))

    x = strategy.experimental_distribute_values_from_function(
        lambda replica: tf.fill([size // 4], 1.0 + replica.replica_id_in_sync_group))
    self._call = lambda: call(x)
    self.writes = _written(call.get_concrete_function(x).graph, size)
    self.cpu: list[float] = []
    self.wall: list[float] = []
    self._calls = max(1, min(20, 2 ** 22 // size))
    self.turn()
    self.cpu, self.wall = [], []

  def turn(self) -> None:
    """Runs a few collectives, and records the seconds of one."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(self._calls):
      self._call()
    for seconds, now, then in ((self.wall, time.perf_counter(), wall),
                               (self.cpu, time.process_time(), cpu)):
      seconds.append((now - then) / self._calls / IN_A_ROW)

  def found(self) -> tuple[float, float, float | None]:
    """Returns a collective's milliseconds of CPU time and of wall time, and its writes."""
    return 1e3 * statistics.median(self.cpu), 1e3 * statistics.median(self.wall), self.writes


def _written(graph, size: int) -> float | None:
  """Returns the bytes that a collective writes, in sizes; None if the graph lacks them."""
  sizes = [x.shape.num_elements() for op in graph.get_operations()
           if op.type not in _FORWARDING for x in op.outputs if x.dtype.is_floating]
  return None if None in sizes else 4.0 * sum(sizes) / IN_A_ROW / size


def strategies() -> tuple[object, dict[str, object]]:
  """Returns our strategy and the peers' strategies."""
  from replicator import Replicator

  import tensorflow as tf
  if "TF_CONFIG" in os.environ:
    ours = Replicator("multi_worker_mirrored").strategy
    return ours, {"tf.distribute": ours}
  replicas = int(FLAGS.replicas[0])
  ours = Replicator("mirrored", logical_cpus=replicas).strategy
  devices = [f"/cpu:{i}" for i in range(replicas)]
  return ours, {"ring": tf.distribute.MirroredStrategy(devices),
                "one device": tf.distribute.MirroredStrategy(
                    devices, cross_device_ops=tf.distribute.ReductionToOneDevice())}


def main(_: list[str]) -> None:
  cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))
  if FLAGS.here:
    print(json.dumps({"rows": list(measure())}))
  elif cluster and cluster["task"]["index"]:
    list(measure())  # The first process has the table.
  else:
    table = Table("collectives", {
        "replicas": "d", "KiB": ",d", "cpu ms": ".3f", "wall ms": ".3f", "writes": ".1f",
        "peer's cpu ms": ".3f", "peer's wall ms": ".3f", "peer's writes": ".1f", "faster peer": "",
        "cpu ratio": ".2f", "wall ratio": ".2f"})
    for row in measure() if cluster else of_processes():
      table.add(*row)


def of_processes() -> Iterator[list]:
  """Measures each number of replicas in its own process: rings of other sizes would collide."""
  for replicas in FLAGS.replicas:
    yield from measured_alone(
        "benchmarks.collectives_scaling", "--here", f"--replicas={replicas}",
        f"--kib={','.join(FLAGS.kib)}", f"--turns={FLAGS.turns}")["rows"]


def measure() -> Iterator[list]:
  """Measures the collectives; yields a row of the table for each size and collective."""
  import replicator

  import tensorflow as tf
  here = tf.distribute.get_replica_context
  collectives = {
      "all_sum": (replicator.all_sum,
                  lambda x: here().all_reduce(tf.distribute.ReduceOp.SUM, x)),
      "all_concat": (replicator.all_concat, lambda x: here().all_gather(x, axis=0)),
      "all_gather": (lambda x: replicator.all_gather(x)[0], None),
      "reduce_scatter": (replicator.reduce_scatter, None),
      "all_to_all": (replicator.all_to_all, None)}
  strategy, peers = strategies()
  for kib in map(int, FLAGS.kib):
    for name, (own, native) in collectives.items():
      of_peers = {peer: Contender(other, native, kib << 10)
                  for peer, other in peers.items() if native}
      ours = Contender(strategy, own, kib << 10)
      for _ in range(FLAGS.turns):
        for contender in (ours, *of_peers.values()):
          contender.turn()
      own = ours.found()
      fastest = min(((*each.found(), peer) for peer, each in of_peers.items()), default=None)
      yield [name, strategy.num_replicas_in_sync, kib, *own, *(
          [*fastest, own[0] / fastest[0], own[1] / fastest[1]] if fastest else [None] * 6)]


if __name__ == "__main__":
  app.run(main)
