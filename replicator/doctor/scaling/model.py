"""A model of the time of a step on N replicas: pure functions of numbers.

    seconds = compute + sum over its collectives of (launch + hops latency + sent / bandwidth)

`compute` is what one replica computes. Nothing overlaps, so the sum is an upper bound: a library
that sends gradients while it computes others is faster. Each collective runs around a ring, in
which every replica sends to the next while it receives from the one before:

    all_reduce    2 (N - 1) hops, 2 (N - 1) / N times its bytes: scattered, then gathered
    all_gather      (N - 1) hops,   (N - 1)     times its bytes
    all_to_all      (N - 1) hops,   (N - 1) / N times its bytes

So do TensorFlow's collectives between CPUs (`tensorflow/core/common_runtime/ring_reducer.cc`) and
NCCL's rings. To reduce, NCCL also has pairs of trees: `2 log2 N` hops, twice the bytes. It takes
what it expects to be faster, and so does this model. On a torus the hops run along one axis after
the other (Patarasuk and Yuan 2009 for rings; Sanders et al. 2009 for pairs of trees).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # It loads TensorFlow, which a prediction from given numbers does not need.
  from replicator.step.context import Transfer

RING, TREE, TORUS = "ring", "tree", "torus"


@dataclasses.dataclass(frozen=True)
class Network:
  """The connection of the replicas; each pair of neighbors alike.

  Attributes:
    bandwidth: the bytes that a replica sends in a second, while it receives as many.
    latency: the seconds of one hop, from a replica to the next, without the bytes.
    launch: the seconds of a collective before its first hop.
    shape: 'ring'; 'tree' for a ring or a pair of trees, whichever is faster; or 'torus', of two
      axes.
  """

  bandwidth: float
  latency: float
  launch: float = 0.0
  shape: str = TREE


NETWORKS = {
    # The numbers by which NCCL 2.29.7 chooses its algorithms: src/graph/topo.h and tuning.cc of
    # NVIDIA/nccl, with the hop and the launch of a ring in the protocol of large messages. PCIe 3.0
    # x16; the 12 links of an A100, 20 GB/s each; InfiniBand HDR, 200 Gbit/s, a hop of any network.
    "pcie": Network(12e9, 5.7e-6, 8.4e-6),
    "nvlink": Network(240e9, 3.4e-6, 8.4e-6),
    "infiniband": Network(25e9, 14e-6, 8.4e-6),
    # The rate of the line. A message through the kernel's TCP takes 26 us one way at 10 Gbit/s:
    # community.rti.com, "Network performance", TCP, Connext 6.1.1, 32 to 256 bytes, the median.
    "10gbe": Network(1.25e9, 26e-6, 8.4e-6),
    "100gbe": Network(12.5e9, 26e-6, 8.4e-6),
    # TPU v3: 1e11 bytes/s a link and direction, used in both directions of one axis at a time; a
    # hop takes about 1 us. "How to Scale Your Model", jax-ml.github.io/scaling-book/tpus.
    "ici": Network(2e11, 1e-6, shape=TORUS),
}
"""Networks by name. Every replica has a port of its own; docs/guide/scaling.md has the links."""


def transfer_seconds(transfer: "Transfer", replicas: int, network: Network) -> float:
  """Seconds of one collective between `replicas` replicas."""
  if replicas == 1:
    return 0.0
  size = transfer.bytes or 0  # Unknown before the step runs: nothing that could be counted.
  hops, sent = _ring(transfer.move, replicas, network.shape)
  seconds = hops * network.latency + sent * size / network.bandwidth
  if transfer.move == "all_reduce" and network.shape == TREE:
    levels = math.ceil(math.log2(replicas))
    seconds = min(seconds, 2 * (levels * network.latency + size / network.bandwidth))
  return network.launch + seconds


def _ring(move: str, replicas: int, shape: str) -> tuple[float, float]:
  """The hops of a collective, and what each replica sends, as a multiple of the bytes it gives."""
  n = replicas
  around = 2 * (math.sqrt(n) - 1) if shape == TORUS else n - 1
  return {"all_reduce": (2 * around, 2 * (n - 1) / n), "all_gather": (around, n - 1),
          "all_to_all": (around, (n - 1) / n)}[move]


REPLICAS = tuple(2 ** power for power in range(1, 10))  # 2 to 512.


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The scaling of a step.

  By default every replica keeps its batch ("weak scaling"). With `strong` that batch is the global
  one and is divided, and so are its seconds; the bytes stay, as those of gradients do.
  """

  seconds: float  # What one replica computes.
  transfers: "Sequence[Transfer]"
  strong: bool = False
  replicas: Sequence[int] = REPLICAS

  def efficiencies(self, network: Network) -> list[float]:
    """The examples a second on each number N of replicas, as a share of N times those on one."""
    return [self._efficiency(replicas, network) for replicas in self.replicas]

  def _efficiency(self, replicas: int, network: Network) -> float:
    own = self.seconds / replicas if self.strong else self.seconds
    return own / (own + sum(transfer_seconds(transfer, replicas, network)
                            for transfer in self.transfers))
