"""Losses of GANs."""
