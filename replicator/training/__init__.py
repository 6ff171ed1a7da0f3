"""The training loop around a step: inputs, log points, evaluations, the guard, recovery."""

from replicator.console import quiet

quiet.import_tensorflow()
