"""Runs a sweep: many trials of one experiment, each an ordinary run in its own folder.

    python -m experiments.sweep --sweep_file=configs/sweeps/sngan_lr.gin [--workdir=DIR]
        [--runner=local|slurm|ray] [--jobs=N] [--retry_failed] [--sweep_param="..."]
        [--explain] [--debug]

The same command resumes a sweep that was stopped.
"""

import sys

from replicator.sweeps import command

if __name__ == "__main__":
  sys.exit(command.main())
