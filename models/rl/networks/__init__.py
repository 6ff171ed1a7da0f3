"""Policies, critics and the heads of critics."""

from replicator import moved

moved.say_where(__name__)
