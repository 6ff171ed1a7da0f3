"""The gradients of an update: matched with the variables of its optimizer, and clipped."""

from collections.abc import Callable, Sequence

from replicator.errors import UsageError
from replicator.step import context

import keras
import tensorflow as tf


def matched(name: str, owned: Sequence[keras.Variable], gradients: list[tf.Tensor | None],
            variables: Sequence[keras.Variable] | None) -> dict[int, tf.Tensor]:
  """Returns gradients by the id of their variable, without None and those of frozen variables.

  `owned` are the variables that the optimizer `name` owns. `variables` are those that the caller
  passed along with the gradients, or None. Raises the UsageErrors of `Optimizer.apply`.
  """
  if context.num_replicas() > 1 and context.in_inner_graph():
    raise UsageError(f"{name}.apply: called inside a tf.cond, tf.while_loop or tf.function of the "
                     "step, where replicas cannot communicate; call it directly in the step, in "
                     "Python loops, and to update at every n-th call, use wrap_optimizer(every=n)")
  if any(isinstance(gradient, tuple) for gradient in gradients):  # As for apply_gradients.
    raise UsageError(f"{name}.apply: given pairs, as from zip; write apply(gradients, variables)")
  unfrozen = [v for v in owned if v.trainable]
  ids = lambda variables: [id(v) for v in variables]
  if variables is not None and ids(variables) not in (ids(owned), ids(unfrozen)):
    raise UsageError(f"{name}.apply: the variables differ from the {len(owned)} it was wrapped "
                     "with; an optimizer owns its variables, in the order of "
                     "wrap_optimizer(optimizer, variables)")
  expected = unfrozen if len(gradients) == len(unfrozen) else owned
  if len(gradients) != len(expected):
    raise UsageError(f"{name}.apply: {len(gradients)} gradients for {len(expected)} variables; "
                     "only frozen variables need no gradient")
  pairs = [(g, v) for g, v in zip(gradients, expected, strict=True) if v.trainable]
  if pairs and all(g is None for g, _ in pairs):
    raise UsageError(f"{name}.apply: all {len(pairs)} gradients are None; the loss does not depend "
                     f"on {pairs[0][1].path} or the others, or it (or its scale_loss) was computed "
                     "outside the tape")
  return {id(v): tf.convert_to_tensor(g) for g, v in pairs if g is not None}


def clipped(gradients: list[tf.Tensor], clip_norm: float | None,
            norm_of: Callable[[list[tf.Tensor]], tf.Tensor] = tf.linalg.global_norm
            ) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Clips averaged gradients to a norm: `g min(1, clip_norm / |g|)` (Pascanu et al. 2013).

  |g| is the global norm, computed by `norm_of`. A `clip_norm` of None clips nothing. Also returns
  |g|, float32 or float64 [], which is not finite if a gradient is not.
  """
  widest = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
  norm = norm_of([tf.cast(gradient, widest) for gradient in gradients])
  if clip_norm is not None:
    gradients = [tf.clip_by_global_norm([gradient], clip_norm, tf.cast(norm, gradient.dtype))[0][0]
                 for gradient in gradients]
  return gradients, norm
