"""The private names of Keras and TensorFlow that the engine needs, in one module for each."""
