"""The private names of Keras and TensorFlow that the engine needs, in one module for each."""

from replicator.console import quiet

quiet.import_tensorflow()
