"""A preview of images before training, with warnings about possible problems."""
