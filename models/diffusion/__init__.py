"""Diffusion models: denoisers, their loss and sampler, and their distillation to one step."""
