"""How the replicas of one process add up their tensors where devices share their memory."""

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute import values as distributed


class SumOnEveryDevice(tf.distribute.ReductionToOneDevice):
  """Every device fetches the tensors of all replicas and adds them up, in the same order.

  One operation a device. TensorFlow's HierarchicalCopyAllReduce splits, adds up, joins and
  copies instead, and leaves the last of an odd number of devices out of the sum.
  """

  def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any,
                                  options: Any) -> list:
    """Sums each; see `tf.distribute.CrossDeviceOps.batch_reduce_implementation`."""
    return [self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs]

  def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any,
                            options: Any) -> Any:
    """The sum; see `tf.distribute.CrossDeviceOps.reduce_implementation`."""
    if destinations is not per_replica_value or any(
        not isinstance(x, tf.Tensor) for x in per_replica_value.values):
      return super().reduce_implementation(reduce_op, per_replica_value, destinations, options)
    sums = []
    for value in per_replica_value.values:
      with tf.device(value.device):
        total = tf.add_n(per_replica_value.values)
        sums.append(total / len(per_replica_value.values)
                    if reduce_op == tf.distribute.ReduceOp.MEAN else total)
    return distribute_utils.regroup(sums, wrap_class=distributed.Mirrored)
