"""Which processes make a run together, and which of them this one is. Loads no TensorFlow."""
