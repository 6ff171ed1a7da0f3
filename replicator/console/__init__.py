"""The parts of every command: flags, exit status, progress, numbers. Loads no TensorFlow."""
