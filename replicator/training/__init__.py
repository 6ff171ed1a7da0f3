"""The training loop around a step: log points, evaluations, checkpoints."""

from replicator.console import quiet

quiet.import_tensorflow()
