"""Latents: their distributions and their optimization."""
