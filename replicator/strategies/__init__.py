"""What runs a step on replicas: `Replicator`, and the strategies of TensorFlow under it."""

from replicator.console import quiet

quiet.import_tensorflow()
