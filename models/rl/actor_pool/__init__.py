"""Actors in processes of their own."""

from replicator import moved

moved.say_where(__name__)
