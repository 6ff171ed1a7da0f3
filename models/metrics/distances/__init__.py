"""Distances between sets of features."""
