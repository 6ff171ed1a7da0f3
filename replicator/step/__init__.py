"""What a step calls on each replica: random streams, micro-batches, replicated state."""

from replicator.step import random as random  # A name of the facade.
from replicator.step import replicated as replicated  # Also a name of the facade.
