"""What a step calls in the replica context: collectives, random streams, micro-batches."""

from replicator.console import quiet

quiet.import_tensorflow()

from replicator.step import random as random  # noqa: E402  (a name of the facade)
