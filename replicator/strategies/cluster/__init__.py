"""The processes of a distributed run. Does not load TensorFlow."""
