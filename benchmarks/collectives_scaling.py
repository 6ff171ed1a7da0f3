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

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("replicas", ["2", "4", "8", "16"], "Numbers of replicas in one process.")
flags.DEFINE_list("kib", ["4", "64", "1024", "16384"], "Sizes of the tensors, in KiB.")
flags.DEFINE_integer("turns", 15, "Turns of every contender.", lower_bound=1)

IN_A_ROW = 4  # Collectives of one compiled call.
# Operations that pass on their input.
_FORWARDING = {"Identity", "IdentityN", "Reshape", "Placeholder", "Const", "NoOp", "Shape",
               "EnsureShape", "Split", "SplitV", "ExpandDims", "StopGradient"}


HEADER = (f"{'':14} {'replicas':>8} {'KiB':>6} {'cpu ms':>8} {'peer':>8} {'ratio':>6} "
          f"{'wall ms':>8} {'peer':>8} {'ratio':>6} {'writes':>6} {'peer':>6}  the faster peer")


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
    self.bytes = _written(call.get_concrete_function(x).graph) / IN_A_ROW / size
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


def _written(graph) -> float:
  """Returns the bytes that a graph's operations write; NaN if the graph does not specify them."""
  sizes = [x.shape.num_elements() for op in graph.get_operations()
           if op.type not in _FORWARDING for x in op.outputs if x.dtype.is_floating]
  return float("nan") if None in sizes else 4.0 * sum(sizes)


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
  if "TF_CONFIG" in os.environ or len(FLAGS.replicas) == 1:
    measure()
    return
  print(HEADER, flush=True)
  for replicas in FLAGS.replicas:  # In a process each: rings of other sizes would collide.
    subprocess.run([sys.executable, "-m", "benchmarks.collectives_scaling", *sys.argv[1:],
                    f"--replicas={replicas}"], check=True)


def measure() -> None:
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
      print(_row(name, strategy.num_replicas_in_sync, kib, ours, of_peers), flush=True)


def _row(name: str, replicas: int, kib: int, ours: Contender, peers: dict[str, Contender]) -> str:
  cpu, wall = statistics.median(ours.cpu), statistics.median(ours.wall)
  if not peers:
    return (f"{name:14} {replicas:8} {kib:6} {1e3 * cpu:8.3f} {'':15} {1e3 * wall:8.3f} {'':15} "
            f"{ours.bytes:6.1f}")
  fastest = min(peers, key=lambda peer: statistics.median(peers[peer].cpu))
  of_peer = statistics.median(peers[fastest].cpu), statistics.median(peers[fastest].wall)
  return (f"{name:14} {replicas:8} {kib:6} {1e3 * cpu:8.3f} {1e3 * of_peer[0]:8.3f} "
          f"{cpu / of_peer[0]:6.2f} {1e3 * wall:8.3f} {1e3 * of_peer[1]:8.3f} "
          f"{wall / of_peer[1]:6.2f} {ours.bytes:6.1f} {peers[fastest].bytes:6.1f}  {fastest}")


if __name__ == "__main__":
  app.run(main)
