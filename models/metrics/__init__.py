"""Metrics of generated images, and the networks whose features they compare."""
