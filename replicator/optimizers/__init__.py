"""Optimizers for replica steps: slots, moving averages, loss scaling and schedules."""

from replicator.console import quiet

quiet.import_tensorflow()
