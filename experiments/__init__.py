"""Runnable experiments, one file each: `python -m experiments.NAME --gin_file=...`."""

import sys

from replicator.console import quiet, start

# A sweep needs no TensorFlow: its trials are processes of their own.
if "experiments.sweep" not in sys.orig_argv:
  # An experiment is the program, and not a part of another one; and it trains.
  trains = not {"experiments.sample", "experiments.evaluate",
                "experiments.export"} & set(sys.orig_argv)
  if sys.argv[:1] == ["-m"] and trains:
    start.begin(sys.argv[1:])
  quiet.import_tensorflow()
