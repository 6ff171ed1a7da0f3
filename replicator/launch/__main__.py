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

import shutil
import sys
from collections.abc import Sequence

from replicator.console.command import status_of
from replicator.console.flags import Parser
from replicator.errors import UsageError, nearest
from replicator.launch.supervisor import launch


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  def run(words: list[str]) -> int:
    workers, ps, max_restarts, command = parse(words)
    return launch(command, workers, ps, max_restarts)
  return status_of(run, argv, describe=None, prefix="launch")


def parse(argv: Sequence[str]) -> tuple[int, int, int, list[str]]:
  """`["--workers=2", "--ps=1", "--max_restarts=3", "--", "python"] -> 2, 1, 3, ["python"]`.

  Raises:
    UsageError: an option is unknown, a number is out of range, or the command is missing.
  """
  split = list(argv).index("--") if "--" in argv else len(argv)
  options, command = list(argv[:split]), list(argv[split + 1:])
  parser = Parser(prog="python -m replicator.launch",
                  usage="%(prog)s --workers=N [--ps=P] [--max_restarts=R] -- COMMAND ...",
                  description="Starts all processes of a cluster on this machine.")
  parser.add_argument("--workers", type=int, required=True,
                      help="number of workers; with --ps, those besides the chief")
  parser.add_argument("--ps", type=int, default=0,
                      help="number of parameter servers; adds a chief, which coordinates")
  parser.add_argument("--max_restarts", type=int, default=0,
                      help="how often to start everything again, from the last checkpoint")
  flags, unknown = parser.parse_known_args(options)
  if unknown:
    hint = nearest(unknown[0].split("=")[0], ["--workers", "--ps", "--max_restarts"])
    raise UsageError(f"unknown argument '{unknown[0]}'.{hint} The command goes after '--'.")
  if flags.workers < 1:
    raise UsageError(f"--workers={flags.workers}: a cluster needs at least --workers=1.")
  if flags.ps < 0:
    raise UsageError(f"--ps={flags.ps}: write the number of parameter servers, or leave --ps out.")
  if flags.max_restarts < 0:
    raise UsageError(f"--max_restarts={flags.max_restarts}: write how often to start again, "
                     "or leave it out.")
  if not command:
    raise UsageError("no command to start: write it after '--', as in "
                     "'python -m replicator.launch --workers=2 -- python -m experiments.sngan'.")
  if shutil.which(command[0]) is None:
    raise UsageError(f"cannot run '{command[0]}': no such program; after '--', write the command "
                     "as you would type it in a shell.")
  return flags.workers, flags.ps, flags.max_restarts, command


if __name__ == "__main__":
  sys.exit(main())
