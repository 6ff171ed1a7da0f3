"""The command line of `--scaling`: its flags, and the prediction that they ask for."""

import argparse
import math
from collections.abc import Callable

from replicator.doctor.scaling.model import NETWORKS, REPLICAS, Network, counted, table
from replicator.errors import UsageError


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that only `--scaling` takes."""
  flags = parser.add_argument_group("with --scaling")
  flags.add_argument("--bandwidth", type=positive, help="of a replica, in bytes a second")
  flags.add_argument("--latency", type=positive, help="of a hop, in seconds")
  flags.add_argument("--step_seconds", type=positive, help="what one replica takes elsewhere")
  flags.add_argument("--strong", action="store_true", help="divide the batch over the replicas")


def positive(text: str) -> float:
  """The number that a flag gives; raises an ArgumentTypeError if it is not above 0."""
  value = float(text)
  if not 0 < value < math.inf:
    raise argparse.ArgumentTypeError(f"{text} is not above 0")
  return value


def check(flags: argparse.Namespace) -> None:
  """Raises a UsageError for flags that cannot work, before anything slow begins."""
  for name in ("bandwidth", "latency", "step_seconds", "strong"):
    if getattr(flags, name) and not flags.scaling:
      raise UsageError(f"--{name}: works only with --scaling")
  if bool(flags.bandwidth) != bool(flags.latency):
    raise UsageError("--bandwidth and --latency: write both for a network of your own, such as "
                     "--bandwidth=12.5e9 --latency=26e-6, or neither")


def predict(main: Callable[[str], None], flags: argparse.Namespace) -> int:
  """Measures the step of an experiment, and prints the prediction.

  Returns the exit status. Raises a UsageError as `cost.measure` does.
  """
  from replicator.doctor.scaling.cost import measure  # It loads TensorFlow.
  cost = measure(main, flags.gin_file, flags.gin_param,
                 0 if flags.step_seconds else flags.steps or 10)
  print(f"{flags.experiment}: {cost.batch_size} examples "
        + ("over all replicas (strong scaling)" if flags.strong else
           "on every replica (weak scaling; --strong divides them)"))
  seconds = flags.step_seconds or cost.seconds
  print(f"  one replica computes for {1000 * seconds:.4g} ms a step, "
        + ("as --step_seconds says" if flags.step_seconds else "measured here"))
  print(f"  each replica takes part in {counted(cost.transfers)}\n"
        "efficiency, if no replica computes while it sends:")
  networks = {"given": Network(flags.bandwidth, flags.latency)} if flags.bandwidth else NETWORKS
  most = cost.batch_size if flags.strong else max(REPLICAS)
  print(*table(seconds, cost.transfers, networks, most, flags.strong), sep="\n")
  return 0
