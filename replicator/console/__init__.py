"""What every command of the project prints and parses. Loads no TensorFlow."""
