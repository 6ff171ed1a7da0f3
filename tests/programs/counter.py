"""A step whose values are known in advance."""

import replicator

import tensorflow as tf


class Counter(tf.Module):
  """Counts its steps. Takes no inputs."""

  def __init__(self):
    super().__init__()
    self.count = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def __call__(self) -> dict[str, tf.Tensor]:
    self.count.assign_add(1.0)
    return {"count": self.count.read_value(), "number": replicator.step_number(),
            "replica": replicator.replica_id()}
