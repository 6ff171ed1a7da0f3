"""Losses of GANs."""

from replicator import moved

moved.say_where(__name__)
