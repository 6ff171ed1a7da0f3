"""Runnable experiments, one file each: `python -m experiments.NAME --gin_file=...`."""

import sys

from replicator.console import quiet

if "experiments.sweep" not in sys.orig_argv:  # Its trials are processes of their own.
  quiet.import_tensorflow()
