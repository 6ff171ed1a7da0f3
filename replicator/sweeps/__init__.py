"""Sweeps: many runs of one experiment, the space that they span, and what they show.

`python -m experiments.sweep --sweep_file=F` runs a sweep, without TensorFlow in its own process.
"""
