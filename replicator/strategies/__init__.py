"""`Replicator`, which runs a step on replicas, on top of TensorFlow's strategies."""

from replicator.console import quiet

quiet.import_tensorflow()
