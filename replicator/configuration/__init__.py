"""Strict gin: reads, checks and records configurations. Loads no TensorFlow."""
