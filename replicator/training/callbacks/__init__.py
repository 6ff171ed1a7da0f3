"""Callbacks of the training loop; each is also an example for writing your own."""
