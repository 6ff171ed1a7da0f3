"""Generative adversarial networks with encoders."""
