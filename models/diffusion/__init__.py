"""Diffusion models: denoisers, their training and samples, and their distillation to one step."""
