"""The state of layers that every replica computes alike."""

import keras


def variable(name: str, shape: tuple, initializer: str, dtype: str) -> keras.Variable:
  """Makes a Keras variable for the state of a layer that all replicas compute alike.

  Every replica writes its own copy. A mirrored variable would broadcast each value instead.
  """
  return keras.Variable(keras.initializers.get(initializer), shape=shape, dtype=dtype,
                        trainable=False, autocast=False, name=name,
                        synchronization="on_read", aggregation="only_first_replica")
