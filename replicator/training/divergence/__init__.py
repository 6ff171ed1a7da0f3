"""Divergence: how a run detects it, and what the run does about it."""
