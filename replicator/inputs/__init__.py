"""Examples: what a source is, and each worker's part of the global batches."""

from replicator.console import quiet

quiet.import_tensorflow()
