"""Divergence: the numbers of a run that went wrong, and what the run does about them."""
