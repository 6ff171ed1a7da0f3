"""Learned models of environments, in which an agent imagines sequences."""
