"""Starts all processes of a cluster on this machine: `python -m replicator.launch`.

  python -m replicator.launch --workers=2 [--ps=1] -- python -m experiments.sngan ...

Each process reads its role from TF_CONFIG, as under a cluster manager. Each line that it prints
appears after its name: `[worker 0] step 200/5000`. Without `--ps` the cluster is `{"worker":
[...]}`, for the strategy `multi_worker_mirrored`. With `--ps` it is `{"chief": [one], "worker":
[...], "ps": [...]}`, for `parameter_server`; a worker that dies is started again and joins the run,
which ends when the same worker dies for the third time within a minute.

With `--max_restarts=N`, a run that ends because a process died is started again as a whole, up to N
times, on new ports; it resumes from the last checkpoint. A run that ends with status 2 or after a
signal is not started again.

Exit status: 0 when every worker (with `--ps`: the chief) ended with 0; else the first status that
is not 0, or 128 + n for a process that signal n ended; 2 for a bad command line; 42 when a SIGINT
or SIGTERM, which is passed on, made the processes save and end. A second signal ends the rest.
"""

import sys
from collections.abc import Sequence

from replicator.console.command import status_of
from replicator.console.flags import Parser
from replicator.errors import UsageError
from replicator.launch.supervisor import launch


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_launch, argv, describe=None, prefix="launch")


def _launch(words: list[str]) -> int:
  parser = Parser(prog="python -m replicator.launch",
                  usage="%(prog)s --workers=N [--ps=P] [--max_restarts=R] -- COMMAND ...",
                  description="Starts all processes of a cluster on this machine.")
  parser.add_argument("--workers", type=int, required=True,
                      help="number of workers; with --ps, those besides the chief")
  parser.add_argument("--ps", type=int, default=0,
                      help="number of parameter servers; adds a chief, which coordinates")
  parser.add_argument("--max_restarts", type=int, default=0,
                      help="how often to start everything again, from the last checkpoint")
  parser.add_argument("command", nargs="+", help="the command, as typed in a shell")
  flags = parser.parse_args(words)
  for name, least in (("workers", 1), ("ps", 0), ("max_restarts", 0)):
    if getattr(flags, name) < least:
      raise UsageError(f"--{name}={getattr(flags, name)}: must be at least {least}")
  return launch(flags.command, flags.workers, flags.ps, flags.max_restarts)


if __name__ == "__main__":
  sys.exit(main())
