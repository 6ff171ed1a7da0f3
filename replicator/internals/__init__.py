"""The private names of Keras and TensorFlow that the engine needs."""
