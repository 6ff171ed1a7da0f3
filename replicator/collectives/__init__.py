"""Operations across replicas: what a step calls, and how its tensors travel."""

from replicator.console import quiet

quiet.import_tensorflow()
