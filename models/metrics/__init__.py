"""Metrics of generated images, and the networks that compute their features."""
