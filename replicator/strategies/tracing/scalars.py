"""The scalars that a step returns for the log."""

from typing import Any

from replicator.errors import UsageError

import tensorflow as tf

DTYPE = tf.float64  # Float32 would round a counter above 2^24.
_COLUMNS = ("step", "seconds", "data_wait", "staleness")  # Columns of the log that the loop writes.


def checked(outputs: Any) -> dict[str, tf.Tensor]:
  """Returns the outputs of a step; raises a UsageError unless they are scalars to log."""
  if not isinstance(outputs, dict) or not outputs:
    raise UsageError("the step must return a non-empty dict of scalars to log, such as "
                     f"{{'loss': loss}}, not {type(outputs).__name__}")
  for name, value in outputs.items():
    if not isinstance(name, str) or name.startswith(("eval/", "system/")):
      raise UsageError(f"the step returned a scalar with the name {name!r}; choose a string that "
                       "does not begin with 'eval/' or 'system/', which are for evaluations and "
                       "for the machine")
    if name in _COLUMNS:
      raise UsageError(f"the step returned '{name}', which is already a column of the log; choose "
                       "another name")
    try:
      value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
      raise UsageError(f"the step returned '{name}', a {type(value).__name__}; return a numeric "
                       "scalar") from error
    if value.shape.rank != 0:
      raise UsageError(f"the step returned '{name}' of shape {value.shape}; return a scalar, "
                       "such as its tf.reduce_mean over the replica's examples")
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
      raise UsageError(f"the step returned '{name}', which is {value.dtype.name}; return a numeric "
                       "scalar")
  return outputs


def is_counter(value: Any) -> bool:
  """Returns whether a scalar is a counter, whose last value is logged instead of its mean.

  Variables and unsigned integers are counters.
  """
  return isinstance(value, tf.Variable) or tf.convert_to_tensor(value).dtype.is_unsigned


def stacked(values: dict[str, Any]) -> tf.Tensor:
  """Packs the scalars into one vector, `[number of scalars]`."""
  return tf.stack([tf.cast(value, DTYPE) for value in values.values()])
