"""Runnable experiments, one file each: `python -m experiments.NAME --gin_file=...`."""

import sys

from replicator.console import quiet

# A sweep needs no TensorFlow: its trials are processes of their own.
if "experiments.sweep" not in sys.orig_argv:
  quiet.import_tensorflow()
