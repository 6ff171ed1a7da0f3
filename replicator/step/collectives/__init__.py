"""Collectives: the operations that a step calls, and how they move tensors between replicas."""
