"""`replicator doctor`: checks that a step trains the same however it is divided."""
