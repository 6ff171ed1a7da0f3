"""Augmentations that a discriminator sees images through, differentiable and drawn per example."""
