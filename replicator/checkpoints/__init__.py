"""Checkpoints: the variables of a step, saved to the disk and restored."""

from replicator.console import quiet

quiet.import_tensorflow()
