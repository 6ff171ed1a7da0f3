"""What all commands share: flags, exit status, progress, number formats. Loads no TensorFlow."""
