"""`Replicator`, which runs a step on replicas, on top of TensorFlow's strategies."""
