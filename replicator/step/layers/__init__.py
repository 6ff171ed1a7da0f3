"""Keras layers that compute the same on one replica and on many replicas."""
