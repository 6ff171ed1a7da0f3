"""Differentiable augmentations of the discriminator's inputs, drawn per example."""
