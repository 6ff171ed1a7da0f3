"""Optimizers for replica steps: slots, moving averages, loss scaling and schedules."""

from replicator.console import quiet

quiet.import_tensorflow()

from replicator.optimizers import schedules as schedules  # A name of the facade.
