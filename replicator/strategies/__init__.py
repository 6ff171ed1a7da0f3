"""What runs a step on replicas: `Replicator`, on top of TensorFlow's strategies."""

from replicator.console import quiet

quiet.import_tensorflow()
