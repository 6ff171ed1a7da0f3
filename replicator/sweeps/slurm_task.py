"""What an index of a Slurm array runs: `python -m replicator.sweeps.slurm_task FOLDER INDEX`."""

import json
import pathlib
import signal
import sys

from replicator.sweeps import trials
from replicator.sweeps.attempt import Attempt
from replicator.sweeps.runners import slurm
from replicator.sweeps.trials import DONE, FAILED, Trial


def main(folder: str, index: str) -> int:
  """Runs the trial at `index` of the folder's array to its end; 1 if it failed."""
  facts = json.loads((pathlib.Path(folder) / slurm.TRIALS).read_text())
  trial = Trial(**{**facts["trials"][int(index)],
                   "words": tuple(facts["trials"][int(index)]["words"])})
  record = trials.read_record(pathlib.Path(folder) / "trials" / trial.id)
  if record and record.status == DONE:  # Slurm has started this index again.
    return 0
  attempt = Attempt(trial, pathlib.Path(folder), facts["cwd"])
  for number in (signal.SIGTERM, signal.SIGINT):  # A time limit, a preemption, scancel.
    signal.signal(number, lambda *_: attempt.stop())
  return int(attempt.run().status == FAILED)


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
