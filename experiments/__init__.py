"""Runnable experiments, one file each: `python -m experiments.NAME --gin_file=...`."""

from replicator import quiet

quiet.import_tensorflow()
