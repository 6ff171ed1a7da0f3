"""Checkpoints: the variables of a step, saved to disk and restored."""
