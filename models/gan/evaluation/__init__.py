"""Samples of a generator, and their metrics."""
