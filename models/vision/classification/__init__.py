"""Classifiers, their optimizer, and the probe of an encoder's codes."""
