"""Starts all processes of a cluster, or writes a file that does: `replicator launch`.

  replicator launch --workers=2 [--ps=1] -- python -m experiments.sngan ...

Each process reads its role from TF_CONFIG, as under a cluster manager. Each line of its output is
prefixed with its name: `[worker 0] step 200/5000`. Without `--ps`, the cluster is `{"worker":
[...]}`, for the strategy `multi_worker_mirrored`. With `--ps`, it is `{"chief": [one], "worker":
[...], "ps": [...]}`, for `parameter_server`. `docs/howto/clusters.md` covers other machines,
cluster managers, and processes that die.

Exit status: 0 if every worker (with `--ps`: the chief) ended with 0; otherwise, the first nonzero
status, or 128 + n for a process ended by signal n; 2 for a bad command line; 42 if a SIGINT or
SIGTERM, which is forwarded, made the processes save and end. A second signal ends the rest.
"""

import argparse
import contextlib
import pathlib
import re
import sys
from collections.abc import Callable, Sequence

from replicator.console.command import Parser, status_of
from replicator.errors import UsageError
from replicator.tools.launch import files, ray, spark
from replicator.tools.launch.machines import Machines
from replicator.tools.launch.placement import Placement
from replicator.tools.launch.supervisor import launch

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=5 -o ServerAliveCountMax=2"
"""Never prompts, and ends 10 seconds after the other machine is gone."""

_PLACES = ("hosts", "spark", "ray", "slurm", "kubernetes")  # A command line may name only one.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_launch, argv, describe=None, prefix="launch")


def _launch(words: list[str]) -> int:
  flags = parsed(words)
  if flags.slurm or flags.kubernetes:
    files.write(flags)
    return 0
  with _placement(flags) as placement:
    return launch(flags.command, flags.workers, flags.ps, flags.max_restarts, placement)


def _placement(flags: argparse.Namespace) -> contextlib.AbstractContextManager[Placement]:
  if flags.spark:
    return spark.connected(flags.spark)
  if flags.ray:
    return ray.connected(flags.ray)
  return contextlib.nullcontext(Machines(flags.hosts, flags.ssh, flags.least))


# ---- Flags --------------------------------------------------------------------------------------


def parsed(words: list[str]) -> argparse.Namespace:
  """Parses flags; `least` is None unless the run is elastic. Raises a UsageError for bad flags."""
  flags = _parser().parse_args(words)
  if "" in flags.hosts:
    raise UsageError(f"--hosts={','.join(flags.hosts)}: has an empty name between commas")
  if sum(bool(getattr(flags, name)) for name in _PLACES) > 1:
    raise UsageError(f"command line: use only one of --{', --'.join(_PLACES)}")
  flags.least, flags.workers = _range_of_workers(flags)
  for name, bound in (("workers", 1), ("ps", 0), ("max_restarts", 0), ("grace", 1)):
    if getattr(flags, name) < bound:
      raise UsageError(f"--{name}={getattr(flags, name)}: must be at least {bound}")
  return flags


def _parser() -> Parser:
  parser = Parser(prog="replicator launch",
                  usage="%(prog)s --workers=N [--ps=P] [--max_restarts=R] -- COMMAND ...",
                  description="Starts all processes of a cluster, or writes a file that does.")
  parser.add_argument("--workers", type=_numbers, metavar="N",
                      help="number of workers; with --ps, not counting the chief; with --hosts, "
                      "1:4 trains on those of 4 hosts that answer, at least 1")
  parser.add_argument("--ps", type=int, default=0,
                      help="number of parameter servers; adds a chief, which coordinates")
  parser.add_argument("--max_restarts", type=int, default=0,
                      help="how many times to restart everything from the last checkpoint")
  parser.add_argument("--grace", type=int, default=120, metavar="SECONDS",
                      help="on a cluster, the time a run gets to save when it is asked to stop")
  hosts = parser.add_argument_group("other machines")
  hosts.add_argument("--hosts", default=[], type=lambda text: text.split(","), metavar="A,B",
                     help="the machines, one process on each unless --workers says more; ssh must "
                     "reach them without a password, and all must have this folder")
  hosts.add_argument("--ssh", default=SSH, metavar="WORDS", help="the ssh command")
  clusters = parser.add_argument_group("clusters that run Python")
  clusters.add_argument("--spark", metavar="MASTER",
                        help="a Spark cluster, such as spark://host:7077: one barrier stage")
  clusters.add_argument("--ray", metavar="ADDRESS",
                        help="a Ray cluster, such as auto or host:6379: one placement group")
  slurm = parser.add_argument_group("Slurm")
  slurm.add_argument("--slurm", type=pathlib.Path, metavar="FILE",
                     help="write a script for sbatch, and start nothing")
  slurm.add_argument("--option", action="append", default=[], metavar="OPTION",
                     help="an option of sbatch; may be repeated")
  kubernetes = parser.add_argument_group("Kubernetes")
  kubernetes.add_argument("--kubernetes", type=pathlib.Path, metavar="FILE",
                          help="write a manifest, and start nothing")
  kubernetes.add_argument("--kind", choices=files.KINDS, default="JobSet",
                          help="the kind of the manifest")
  kubernetes.add_argument("--runtime", default="torch-distributed",
                          help="for a TrainJob, the training runtime of the cluster")
  kubernetes.add_argument("--image", help="the container image, which must contain the command")
  kubernetes.add_argument("--resource", action="append", default=[], type=_pair("="),
                          metavar="cpu=4", help="what each container gets; may be repeated")
  kubernetes.add_argument("--volume", action="append", default=[], type=_pair(":"),
                          metavar="CLAIM:/work", help="a persistent volume claim, and where it is "
                          "mounted in all containers; may be repeated")
  parser.add_argument("command", nargs="+", help="the command, as typed in a shell")
  return parser


def _numbers(text: str) -> tuple[int | None, int]:
  """Parses `'4' -> (None, 4)`, `'1:4' -> (1, 4)`, for argparse."""
  if not re.fullmatch(r"(\d+:)?-?\d+", text):
    raise argparse.ArgumentTypeError(f"'{text}' must be a number, such as 4, or 1:4")
  least, _, most = text.rpartition(":")
  return int(least) if least else None, int(most)


def _range_of_workers(flags: argparse.Namespace) -> tuple[int | None, int]:
  """Returns the minimum number of workers of an elastic run, or None; and the number of workers."""
  if flags.workers is None:
    if not flags.hosts:
      raise UsageError("command line: add --workers=N or --hosts=A,B")
    return None, len(flags.hosts) - flags.ps - bool(flags.ps)
  least, most = flags.workers
  if least is not None and (flags.ps or most != len(flags.hosts) or not 1 <= least <= most):
    raise UsageError(f"--workers={least}:{most}: needs --hosts with {most} names and no --ps, "
                     f"and a minimum from 1 to {most}")
  return least, most


def _pair(separator: str) -> Callable[[str], tuple[str, str]]:
  """Returns a parser of `key=value` with this separator, for argparse."""
  def read(text: str) -> tuple[str, str]:
    key, found, value = text.partition(separator)
    if not (key and found and value):
      raise argparse.ArgumentTypeError(f"'{text}' must be two words with '{separator}' between")
    return key, value
  return read


if __name__ == "__main__":
  sys.exit(main())
