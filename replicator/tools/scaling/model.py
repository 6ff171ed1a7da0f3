"""A model of the step time on N replicas, and the table of efficiencies that it predicts.

    seconds = compute + sum over its collectives of (launch + hops latency + sent / bandwidth)

`compute` is the time for which one replica computes. The model assumes no overlap, so the sum is an
upper bound: a library that sends gradients while it computes others is faster. Each collective runs
around a ring, in which every replica sends to the next while it receives from the previous one:

    all_reduce    2 (N - 1) hops, 2 (N - 1) / N times its bytes: scattered, then gathered
    all_gather      (N - 1) hops,   (N - 1)     times its bytes
    reduce_scatter  (N - 1) hops,   (N - 1) / N times its bytes
    all_to_all      (N - 1) hops,   (N - 1) / N times its bytes

TensorFlow's collectives between CPUs (`tensorflow/core/common_runtime/ring_reducer.cc`) and NCCL's
rings work this way. For reductions, NCCL also has double binary trees: `2 log2 N` hops, twice the
bytes. NCCL picks the algorithm that it expects to be faster; this model does the same. On a torus,
the hops run along one axis after the other (Patarasuk and Yuan 2009 for rings; Sanders et al. 2009
for double binary trees).
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from replicator.console.formatting import format_number

if TYPE_CHECKING:  # It loads TensorFlow, which a prediction from given numbers does not need.
  from replicator.step.hooks import Transfer

RING, TREE, TORUS = "ring", "tree", "torus"
REPLICAS = tuple(2 ** power for power in range(1, 10))  # 2 to 512.


@dataclasses.dataclass(frozen=True)
class Network:
  """The network between replicas; all pairs of neighbors are connected alike."""

  bandwidth: float  # The bytes per second that a replica sends, while it receives as many.
  latency: float  # The seconds of one hop, from a replica to the next, excluding the bytes.
  launch: float = 0.0  # The seconds of a collective before its first hop.
  shape: str = TREE  # TREE uses trees where they are faster than the ring; a torus has two axes.


NETWORKS = {
    # The numbers with which NCCL 2.29.7 chooses its algorithms.
    "pcie": Network(12e9, 5.7e-6, 8.4e-6),
    "nvlink": Network(240e9, 3.4e-6, 8.4e-6),
    "infiniband": Network(25e9, 14e-6, 8.4e-6),
    # The line rate, and the latency of a message through the kernel's TCP.
    "10gbe": Network(1.25e9, 26e-6, 8.4e-6),
    "100gbe": Network(12.5e9, 26e-6, 8.4e-6),
    # TPU v3: 1e11 bytes/s per link and direction, used in both directions of one axis at a time.
    "ici": Network(2e11, 1e-6, shape=TORUS),
}
"""Networks by name. Every replica has its own port; docs/explain/scaling.md has the sources."""


def transfer_seconds(transfer: "Transfer", replicas: int, network: Network) -> float:
  """Returns the seconds of one collective among `replicas` replicas, 2 or more."""
  n = replicas
  size = float(transfer.bytes or 0)  # Unknown before the step runs, so it cannot be counted.
  if transfer.parts:
    size *= transfer.parts / n  # With more replicas, each part is smaller.
  around = 2 * (math.sqrt(n) - 1) if network.shape == TORUS else n - 1
  hops, sent = {"all_reduce": (2 * around, 2 * (n - 1) / n), "all_gather": (around, n - 1),
                "reduce_scatter": (around, (n - 1) / n), "all_to_all": (around, (n - 1) / n)
                }[transfer.move]
  seconds = hops * network.latency + sent * size / network.bandwidth
  if transfer.move == "all_reduce" and network.shape == TREE:
    levels = math.ceil(math.log2(n))
    seconds = min(seconds, 2 * (levels * network.latency + size / network.bandwidth))
  return network.launch + seconds


def efficiency(seconds: float, transfers: "Sequence[Transfer]", replicas: int, network: Network
               ) -> float:
  """Returns the examples per second on N replicas, as a fraction of N times those on one.

  `seconds` is the time for which one replica computes, on its own part of the examples.
  """
  return seconds / step_seconds(seconds, transfers, replicas, network)


def step_seconds(seconds: float, transfers: "Sequence[Transfer]", replicas: int, network: Network
                 ) -> float:
  """Returns the seconds of a step on `replicas` replicas, each of which computes for `seconds`."""
  return seconds + sum(transfer_seconds(transfer, replicas, network) for transfer in transfers)


def table(seconds: float, transfers: "Sequence[Transfer]", networks: Mapping[str, Network],
          most: int = max(REPLICAS), strong: bool = False) -> list[str]:
  """Formats the efficiency in percent: a row per number of replicas, a column per network.

  Every replica computes for `seconds`. With `strong`, they share that time, but the bytes stay the
  same, as those of gradients do. The last row is for at most `most` replicas.
  """
  lines = ["  replicas" + "".join(f"{name:>12}" for name in networks)]
  for replicas in REPLICAS:
    if replicas <= most:
      own = seconds / replicas if strong else seconds
      row = [efficiency(own, transfers, replicas, network) for network in networks.values()]
      lines.append(f"  {replicas:8}" + "".join(f"{100 * value:10.1f} %" for value in row))
  return lines


def counted(transfers: "Sequence[Transfer]") -> str:
  """Describes the collectives of a step by kind, with the bytes that one replica contributes."""
  moves = []
  for move, count in Counter(transfer.move for transfer in transfers).items():
    sizes = [transfer.bytes for transfer in transfers if transfer.move == move]
    size = f"{format_number(sum(size or 0 for size in sizes) / 1e6)} MB"
    unknown = f" and {sizes.count(None)} whose size varies, taken as 0" if None in sizes else ""
    moves.append(f"{count} {move} ({size}{unknown})")
  return f"{len(transfers)} collective{'s' * (len(transfers) > 1)}: {', '.join(moves)}"


def kept(weights: int, state: int, transfers: "Sequence[Transfer]") -> str:
  """Describes what a replica keeps: weights, as many bytes of gradients, and optimizer state.

  The state is divided over the replicas if a collective moves parts.
  """
  size = lambda count: f"{format_number(count / 1e6)} MB"
  share = "1/N of " if any(each.parts for each in transfers) else ""
  return (f"{size(2 * weights)} of weights and gradients, and {share}{size(state)} of slots and "
          "averages")
