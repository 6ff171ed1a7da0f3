"""Sweeps: many runs of one experiment, the space of their settings, and their results.

`replicator sweep --sweep_file=F` runs a sweep. Its own process does not load TensorFlow.
"""
