"""The processes that make a run together. Loads no TensorFlow."""
