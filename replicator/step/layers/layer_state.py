"""The state of a layer, which every replica keeps and computes alike."""

import keras


def variable(name: str, shape: tuple, initializer: str, dtype: str) -> keras.Variable:
  """Makes a Keras variable of which every replica writes its own copy, all with the same value."""
  # A mirrored variable would broadcast the value of the first replica at every write.
  return keras.Variable(keras.initializers.get(initializer), shape=shape, dtype=dtype,
                        trainable=False, autocast=False, name=name,
                        synchronization="on_read", aggregation="only_first_replica")
