"""The command line of `--scaling`: its flags, and the prediction that they ask for."""

import argparse
import dataclasses
import math
import os
import pathlib
from collections.abc import Sequence

from replicator.doctor.experiment import load
from replicator.doctor.scaling import report
from replicator.doctor.scaling.model import NETWORKS, REPLICAS, Network, Prediction
from replicator.errors import UsageError, nearest

_FLAGS = ("network", "bandwidth", "latency", "step_seconds", "strong", "plot")


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that only `--scaling` takes."""
  flags = parser.add_argument_group("with --scaling")
  flags.add_argument("--network", metavar="NAME", help=f"one of: {', '.join(NETWORKS)}")
  flags.add_argument("--bandwidth", type=float, help="of a replica, in bytes a second")
  flags.add_argument("--latency", type=float, help="of a hop, in seconds")
  flags.add_argument("--step_seconds", type=float, help="what one replica takes elsewhere")
  flags.add_argument("--strong", action="store_true", help="divide the batch over the replicas")
  flags.add_argument("--plot", metavar="F.png", type=os.path.expanduser, help="draw the efficiency")


def check(flags: argparse.Namespace) -> None:
  """Raises a UsageError for flags that cannot work, before anything slow begins."""
  if not flags.scaling:
    for name in _FLAGS:
      if getattr(flags, name):
        raise UsageError(f"--{name}: works only with --scaling")
    return
  for name, example in (("bandwidth", "bytes a second, such as 12.5e9"),
                        ("latency", "seconds, such as 26e-6"),
                        ("step_seconds", "seconds, such as 0.1")):
    value = getattr(flags, name)
    if value is not None and not 0 < value < math.inf:
      raise UsageError(f"--{name}={value:g}: write {example}")
  networks(flags)
  if flags.plot and not (flags.plot.endswith(".png")
                         and pathlib.Path(flags.plot).absolute().parent.is_dir()):
    raise UsageError(f"--plot={flags.plot}: write a file that ends with .png, in a folder that "
                     "exists")


def networks(flags: argparse.Namespace) -> dict[str, Network]:
  """The network that the flags describe; without any, all that have names.

  Raises:
    UsageError: there is no such network, or one of its numbers is missing.
  """
  numbers = {name: getattr(flags, name) for name in ("bandwidth", "latency")
             if getattr(flags, name) is not None}
  if flags.network is None and len(numbers) == 1:
    given, = numbers
    raise UsageError(f"--{given}: write both --bandwidth and --latency, or add --network=NAME, "
                     "which has the other")
  if flags.network is None:
    return {"given": Network(**numbers)} if numbers else NETWORKS
  if flags.network not in NETWORKS:
    raise UsageError(f"--network={flags.network}: no such network."
                     f"{nearest(flags.network, NETWORKS)} Write one of: {', '.join(NETWORKS)}")
  return {flags.network: dataclasses.replace(NETWORKS[flags.network], **numbers)}


def predict(flags: argparse.Namespace, params: Sequence[str]) -> int:
  """Measures the experiment's step under the gin bindings `params`, and prints the prediction.

  Returns the exit status. Raises a UsageError as `cost.of_two_replicas` does.
  """
  main = load(flags.experiment)
  from replicator.doctor.scaling import cost  # It loads TensorFlow.
  calls = 0 if flags.step_seconds else flags.steps or 10
  alone = cost.of_one_replica(main, flags.gin_file, params, calls)
  print(f"{flags.experiment}: {alone.batch_size} examples "
        + ("over all replicas (strong scaling)" if flags.strong else
           "on every replica (weak scaling; --strong divides them)"))
  seconds = flags.step_seconds or alone.seconds
  print(f"  one replica computes for {1000 * seconds:.4g} ms a step, "
        + ("as --step_seconds says" if flags.step_seconds else "measured here"), flush=True)
  transfers = cost.of_two_replicas(main, flags.gin_file, params, alone.batch_size).transfers
  replicas = [n for n in REPLICAS if not flags.strong or n <= alone.batch_size]
  prediction = Prediction(seconds, transfers, flags.strong, replicas)
  print(f"  each replica takes part in {report.counted(transfers)}\n"
        "efficiency, if no replica computes while it sends:")
  print(*report.table(prediction, networks(flags)), sep="\n")
  if flags.plot:
    report.draw(flags.plot, {flags.experiment: (prediction, networks(flags))})
    print(f"drawn: {flags.plot}")
  return 0
