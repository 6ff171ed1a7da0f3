"""Checks of a step: whether two computations of it agree, and why they do not."""
