"""Actors in separate processes."""
