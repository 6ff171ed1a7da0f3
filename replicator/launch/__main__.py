"""Starts all processes of a cluster on this machine: `python -m replicator.launch`.

  python -m replicator.launch --workers=2 [--ps=1] -- python -m experiments.sngan ...

Each process reads its role from TF_CONFIG, as under a cluster manager. Each line that it prints
appears after its name: `[worker 0] step 200/5000`. Without `--ps` the cluster is `{"worker":
[...]}`, for the strategy `multi_worker_mirrored`. With `--ps` it is `{"chief": [one], "worker":
[...], "ps": [...]}`, for `parameter_server`; a worker that dies is started again and joins the run,
which ends when the same worker dies for the third time within a minute.

With `--hosts=a,b` in place of `--workers`, there is one process on each of these machines, which
ssh reaches. They end when the launcher or the connection to it does. With `--workers=1:2` besides,
the run is elastic: it begins with the machines that answer, at least 1, goes on without one that is
lost, and stops to start with all once that is back.

With `--spark=MASTER` or `--ray=ADDRESS`, there is one process in each task of a barrier stage of
Spark, or in each bundle of a placement group of Ray.

With `--max_restarts=N`, a run that ends because a process died is started again as a whole, up to N
times, on new ports; it resumes from the last checkpoint. A run that ends with status 2 or after a
signal is not started again.

With `--slurm=job.sh` or `--kubernetes=job.yaml --image=IMAGE` it starts nothing: it writes what a
cluster manager needs to start one process on each of so many nodes. `docs/howto/clusters.md` says
how to use it, and what happens on preemption.

Exit status: 0 when every worker (with `--ps`: the chief) ended with 0; else the first status that
is not 0, or 128 + n for a process that signal n ended; 2 for a bad command line; 42 when a SIGINT
or SIGTERM, which is passed on, made the processes save and end. A second signal ends the rest.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence

from replicator.console.command import status_of
from replicator.errors import UsageError
from replicator.launch import flags as launch_flags
from replicator.launch import manifest, ray, slurm_script, spark
from replicator.launch.machines import Machines
from replicator.launch.placement import Placement
from replicator.launch.supervisor import launch


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_launch, argv, describe=None, prefix="launch")


def _launch(words: list[str]) -> int:
  flags = launch_flags.parsed(words)
  if flags.slurm or flags.kubernetes:
    _write(flags)
    return 0
  with _placement(flags) as placement:
    return launch(flags.command, flags.workers, flags.ps, flags.max_restarts, placement)


def _placement(flags: argparse.Namespace) -> contextlib.AbstractContextManager[Placement]:
  if flags.spark:
    return spark.connected(flags.spark)
  if flags.ray:
    return ray.connected(flags.ray)
  return contextlib.nullcontext(Machines(flags.hosts, flags.ssh, flags.least))


def _write(flags: argparse.Namespace) -> None:
  """Writes the file for the cluster manager that the flags name."""
  command = list(flags.command)
  if flags.ps:
    command.append(f"--gin_param=Replicator.servers = {flags.ps}")
  file = flags.slurm or flags.kubernetes
  try:
    if flags.slurm:
      nodes = flags.workers + flags.ps + bool(flags.ps)
      slurm_script.write(file, command, nodes, flags.option, flags.grace, flags.max_restarts)
      print(f"{file}: submit it with 'sbatch {file}'")
      return
    if not flags.image:
      raise UsageError(f"--kubernetes={file}: write the image of the containers, --image=IMAGE")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", file.stem):
      raise UsageError(f"--kubernetes={file}: the name of the file is that of the job, which has "
                       "at most 40 small letters, digits and hyphens")
    manifest.write(file, flags.kind, manifest.Pods(
        command, flags.workers, flags.ps, flags.image, dict(flags.resource), dict(flags.volume),
        flags.grace, flags.max_restarts))
    print(f"{file}: start it with 'kubectl apply -f {file}'")
  except OSError as error:
    raise UsageError(f"cannot write {file}: {error.strerror}") from error


if __name__ == "__main__":
  sys.exit(main())
