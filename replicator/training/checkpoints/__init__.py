"""Checkpoints: the variables of a step, saved to the disk and restored."""
