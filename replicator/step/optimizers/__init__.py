"""Optimizers for replica steps: slots, moving averages, loss scaling and schedules."""

from replicator.step.optimizers import schedules as schedules  # A name of the facade.
