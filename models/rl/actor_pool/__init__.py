"""Actors in processes of their own."""
