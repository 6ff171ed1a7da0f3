"""Samples, and what is measured of them."""

from replicator import moved

moved.say_where(__name__)
