"""`replicator doctor`: proves that a step trains the same however it is divided."""
