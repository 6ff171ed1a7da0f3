"""The replay buffer: what it stores, what it draws, and how fast it is used."""

from replicator import moved

moved.say_where(__name__)
