"""A script for Slurm's `sbatch`, which starts one process of a run on each node."""

import os
import pathlib
import shlex
from collections.abc import Sequence

from replicator.errors import PREEMPTED_STATUS, USAGE_STATUS

_SCRIPT = """\
#!/bin/bash
# One run on {nodes} nodes, one process on each. To submit it: sbatch {name}
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --output={job}-%j.out
#SBATCH --open-mode=append
# Before the time limit, all processes are asked to save. The job is then queued again.
#SBATCH --signal=TERM@{grace}
#SBATCH --requeue
{options}
cd {folder} || exit 1
trap : TERM  # The processes get it, too: this script waits until they have saved.

for restarts_left in {restarts}; do
  # Processes that still save are not killed when the first one ends.
  srun --distribution=block --kill-on-bad-exit=0 --label {command}
  status=$?
  case $status in
    0 | {usage}) exit $status ;;
    {preempted} | 143)  # Asked to stop: it saved, or had nothing to save yet.
      if [ "$(squeue --noheader --format=%T --job="$SLURM_JOB_ID")" = RUNNING ]; then
        exec scontrol requeue "$SLURM_JOB_ID"
      fi
      exit $status ;;  # The job was canceled, or Slurm itself queues it again.
  esac
  echo "the processes ended with status $status; restarts left: $restarts_left" >&2
done
exit $status
"""


def write(file: pathlib.Path, command: Sequence[str], nodes: int, options: Sequence[str] = (),
          grace: int = 120, max_restarts: int = 0) -> None:
  """Writes the script that runs a command on so many nodes, from this working directory.

  Args:
    file: the script.
    command: the words of the command.
    nodes: the number of nodes.
    options: further options of sbatch, such as "--partition=gpu".
    grace: the seconds before the time limit at which the processes are asked to save.
    max_restarts: how often to start all processes again when one is lost.
  """
  file.write_text(_SCRIPT.format(
      name=file, job=file.stem, nodes=nodes, grace=grace, folder=shlex.quote(os.getcwd()),
      options="".join(f"#SBATCH {option}\n" for option in options), command=shlex.join(command),
      restarts=" ".join(map(str, range(max_restarts, -1, -1))), usage=USAGE_STATUS,
      preempted=PREEMPTED_STATUS))
  file.chmod(0o755)
