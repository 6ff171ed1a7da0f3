"""One index of a Slurm array: `python -m replicator.sweeps.slurm_task FOLDER INDEX`.

The module keeps its name and its arguments: the scripts of arrays that wait in a queue use them.
"""

import json
import pathlib
import sys

from replicator.processes import stop_signals
from replicator.sweeps.runners import slurm
from replicator.sweeps.trial_process import Attempt
from replicator.sweeps.trials import FAILED, Trial


def main(folder: str, index: str) -> int:
  """Runs the trial at `index` of the folder's array to its end; returns 1 if it failed."""
  facts = json.loads((pathlib.Path(folder) / slurm.TRIALS).read_text())
  written = facts["trials"][int(index)]
  trial = Trial(**{**written, "words": tuple(written["words"])})
  attempt = Attempt(trial, pathlib.Path(folder), facts["cwd"])
  with stop_signals(lambda number: attempt.stop()):  # A time limit, a preemption, scancel.
    return int(attempt.run().status == FAILED)


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
