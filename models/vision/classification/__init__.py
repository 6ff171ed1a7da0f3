"""Classifiers, the LARS optimizer, and the linear probe."""
