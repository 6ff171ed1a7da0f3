"""`replicator doctor --scaling`: what a step would cost on many replicas."""
