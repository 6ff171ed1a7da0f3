"""Latent codes: where they are drawn, and how they are optimized."""

from replicator import moved

moved.say_where(__name__)
