"""Runs a sweep: many trials of one experiment, each an ordinary run in a folder of its own.

    python -m experiments.sweep --sweep_file=configs/sweeps/sngan_lr.gin [--workdir=DIR]
        [--runner=local|slurm|ray] [--jobs=N] [--retry_failed] [--sweep_param="..."] [--debug]

The same command goes on with a sweep that was stopped.
"""

import sys

from replicator.sweeps import command

if __name__ == "__main__":
  sys.exit(command.main())
