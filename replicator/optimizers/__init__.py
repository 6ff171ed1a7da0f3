"""Optimizers for replica steps, with their slots, averages, loss scale and schedules."""

from replicator.console import quiet

quiet.import_tensorflow()
