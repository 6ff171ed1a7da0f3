"""Environments: made, wrapped, drawn, and run in processes of their own."""

from replicator import moved

moved.say_where(__name__)
