"""Tracing of steps: checks of their graphs and Python state, and their `trainable` flags."""
