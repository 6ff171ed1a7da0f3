"""The values that replicas pass to collectives, and those that they get."""

import tensorflow as tf
import tree

from replicator import replica_id


def to_numpy(nest):
  return tree.map_structure(lambda x: None if x is None else x.numpy(), nest)


def own_number(dtype="float32") -> tf.Tensor:
  """1 on the first replica, 2 on the second, ..."""
  return tf.cast(replica_id() + 1, dtype)


def static_id() -> int:
  return int(tf.get_static_value(replica_id()))
