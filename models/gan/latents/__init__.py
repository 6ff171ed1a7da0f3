"""Latent codes: where they are drawn, and how they are optimized."""
