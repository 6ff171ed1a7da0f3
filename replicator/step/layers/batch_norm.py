"""Batch normalization over the examples of all replicas, and its statistics for sampling."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from replicator.errors import UsageError
from replicator.internals import tensorflow_internals
from replicator.internals.keras_internals import VariableScope, values_of_scope
from replicator.step import context, replicated, xla
from replicator.step.collectives import collectives, validation
from replicator.step.layers.inspection import layers_of

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("replicator")
class GlobalBatchNorm(keras.layers.Layer):
  """Batch normalization over the examples of all replicas (Ioffe and Szegedy 2015).

  Normalizes over all axes but the last: `[n, ..., c] -> [n, ..., c]`,

      y = gamma (x - mean) / sqrt(variance + epsilon) + beta

  The count, mean and variance of each replica are combined as in Chan et al. (1979). This takes one
  collective, stays accurate even where `E[x^2] - E[x]^2` cancels, and is differentiable to any
  order. Inside `replicator.microbatch`, statistics are those of one micro-batch over all replicas.
  Statistics are float32 under the mixed-precision policies, and float64 under 'float64'.

  A layer that is not `trainable` normalizes with its moving statistics and does not update them,
  as in Keras.

  Args:
    momentum: the fraction of the moving statistics that is kept at each training step.
    epsilon: a small number added to the variance.
    center: whether to add a learned offset `beta [c]`.
    scale: whether to multiply by a learned factor `gamma [c]`.
    groups: lists of replicas, such as `[[0, 1], [2, 3]]`; each group normalizes separately.
      The moving statistics are over all replicas, so they are the same on every replica.
    gamma_initializer: the initial gamma: 'ones' or, for a residual block that starts as the
      identity, 'zeros' (Goyal et al. 2017, arXiv:1706.02677).

  Raises:
    UsageError: the groups do not partition the replicas.
  """

  def __init__(self, momentum: float = 0.9, epsilon: float = 1e-5, center: bool = True,
               scale: bool = True, groups: collectives.Groups = None,
               gamma_initializer: str = "ones", **kwargs):
    super().__init__(autocast=False, **kwargs)
    self.groups = groups
    self.momentum = momentum
    self.epsilon = epsilon
    self.center = center
    self.scale = scale
    self.gamma_initializer = gamma_initializer

  def get_config(self) -> dict[str, Any]:
    names = ("momentum", "epsilon", "center", "scale", "groups", "gamma_initializer")
    return {**super().get_config(), **{name: getattr(self, name) for name in names}}

  def build(self, input_shape):
    shape = (input_shape[-1],)
    if self.scale:
      self.gamma = self.add_weight(name="gamma", shape=shape,
                                   initializer=self.gamma_initializer, autocast=False)
    if self.center:
      self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros", autocast=False)
    dtype = self.variable_dtype
    self.moving_mean = replicated.layer_variable("moving_mean", shape, "zeros", dtype)
    self.moving_variance = replicated.layer_variable("moving_variance", shape, "ones", dtype)

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    context.called(self, training)
    training = training and self.trainable
    if training and self._has_fused_operation(inputs):
      return self._call_fused(tf.cast(inputs, self.compute_dtype))
    x = tf.cast(inputs, self.variable_dtype)
    if training:
      outputs, moments = batch_normalized(x, *self._scale_and_offset(x), self.epsilon, self.groups)
      self._move(*moments)
    else:
      scale, offset = self._scale_and_offset(x)
      multiplier = tf.math.rsqrt(self.moving_variance.value + self.epsilon) * scale
      # Subtract first: x * multiplier - mean * multiplier would cancel where |mean| >> std.
      outputs = (x - self.moving_mean.value) * multiplier + offset
    return tf.cast(outputs, self.compute_dtype)

  def _scale_and_offset(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    channels = [x.shape[-1]]
    return (tf.convert_to_tensor(self.gamma.value) if self.scale else tf.ones(channels, x.dtype),
            tf.convert_to_tensor(self.beta.value) if self.center else tf.zeros(channels, x.dtype))

  def _has_fused_operation(self, x: tf.Tensor) -> bool:
    # TensorFlow's fused operation takes one replica's [n, h, w, c], but not in float64, and XLA
    # expands it into E[x^2] - E[x]^2.
    return (context.num_replicas() == 1 and self.groups is None and x.shape.rank == 4
            and self.compute_dtype != "float64" and not context.current().xla)

  def _call_fused(self, x: tf.Tensor) -> tf.Tensor:
    """Computes the same outputs in a quarter of the time."""
    scale, offset = (tf.cast(v, tf.float32) for v in self._scale_and_offset(x))
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=offset,
        mean=tf.zeros([0]), variance=tf.zeros([0]), epsilon=self.epsilon, is_training=True)
    count = _count(x, variance.dtype)
    self._move(mean, variance * (count - 1) / count)  # The operation divides by count - 1.
    return outputs

  def _move(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
    """Updates the moving statistics once per batch, toward the mean over its micro-batches."""
    context.check_not_recomputed(f"GlobalBatchNorm '{self.name}' would update its statistics")
    with xla.alike():
      # If an update is skipped because of an infinity or NaN, the statistics must not move either.
      is_finite = tf.math.is_finite(variance)
      for statistic, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
        old = before_batch = tf.convert_to_tensor(statistic.value)
        if not context.in_inner_graph():  # Later micro-batches cannot use a tensor of a branch.
          before_batch = context.once(functools.partial(tf.identity, old))
        kept = tf.where(is_finite, new, before_batch)
        statistic.assign(old + replicated.average_change(
            old, kept, 1.0 - self.momentum, moving=statistic))

  def compute_output_shape(self, input_shape):
    return input_shape


_Moments = tuple[tf.Tensor, tf.Tensor]


def batch_normalized(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float,
                     groups: collectives.Groups = None) -> tuple[tf.Tensor, _Moments]:
  """Normalizes `x [n, ..., c]` to the mean `offset [c]` and the standard deviation `scale [c]`.

  The moments are over all axes but the last, and over the replicas of the group. n may differ
  between replicas, and may be 0. The forward pass takes one collective, and the backward pass
  another. With normalized values h, N values per channel in the group, and sums over the group,

      dx = scale / std (dy - sum dy / N - h sum(dy h) / N)

  Also returns the mean and biased variance `[c]` over all replicas, without gradients.
  """
  (mean, variance), everywhere, count = _combined_moments(x, groups)
  inverse = tf.math.rsqrt(variance + epsilon)
  normalized = (x - mean) * inverse

  def gradient(dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
    axes = list(range(x.shape.rank - 1))
    of_offset, of_scale = tf.reduce_sum(dy, axes), tf.reduce_sum(dy * normalized, axes)
    sums = collectives.all_sum(tf.stack([of_offset, of_scale]), groups)
    along_offset, along_scale = tf.unstack(sums / count)
    dx = (dy - along_offset - normalized * along_scale) * (scale * inverse)
    return [dx, of_scale, of_offset]

  # Automatic differentiation would go through the combination of the replicas' moments.
  outputs, *moments = tensorflow_internals.with_gradient(
      [normalized * scale + offset, *everywhere], [x, scale, offset], gradient)
  return outputs, tuple(moments)


def _combined_moments(x: tf.Tensor, groups: collectives.Groups
                      ) -> tuple[_Moments, _Moments, tf.Tensor]:
  """Returns the moments of the group, those of all replicas, and the group's count `[1]`."""
  axes = list(range(x.shape.rank - 1))
  mean = tf.reduce_mean(x, axes)
  variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axes)
  count = _count(x, x.dtype)
  size = x.shape.num_elements()
  if not size:  # No values, or a size that is known only when the step runs.
    mean, variance = (tf.where(count > 0, moment, 0.0) for moment in (mean, variance))
  if context.num_replicas() == 1 and groups is None:
    return (mean, variance), (mean, variance), count
  validation.check_in_step("GlobalBatchNorm on several replicas")
  combine: Callable[[tf.Tensor], tuple[_Moments, tf.Tensor]] = _combine
  # All replicas must call `are_equal_here`, even those without values.
  if context.num_replicas() > 1 and validation.all_are_here() and (
      validation.are_equal_here([size]) and size):
    packed = collectives.all_gather(tf.stack([mean, variance]))
    combine = functools.partial(_combine_equal, count)
  else:
    packed = collectives.all_gather(tf.concat([count, mean, variance], 0))
  with xla.alike():  # For the moving statistics.
    everywhere, total = combine(packed)
  if groups is None:
    return everywhere, everywhere, total
  of_group, count = combine(validation.Group(groups).own(packed))
  return of_group, everywhere, count


def _count(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Returns the number of values per channel: `[1]`."""
  return tf.cast(tf.size(x) / x.shape[-1], dtype)[tf.newaxis]


def _combine_equal(count: tf.Tensor, packed: tf.Tensor) -> tuple[_Moments, tf.Tensor]:
  """Returns the moments and count over replicas of `count` values each: `[replicas, 2, c]`."""
  means, variances = tf.unstack(packed, axis=1)
  mean = tf.reduce_mean(means, axis=0)
  variance = tf.reduce_mean(variances + tf.math.squared_difference(means, mean), axis=0)
  return (mean, variance), count * packed.shape[0]


def _combine(packed: tf.Tensor) -> tuple[_Moments, tf.Tensor]:
  """Returns the moments and count over replicas, given those of each: `[replicas, 1 + 2 c]`."""
  channels = packed.shape[-1] // 2
  counts, means, variances = tf.split(packed, [1, channels, channels], axis=1)
  total = tf.reduce_sum(counts)
  weights = counts / total
  mean = tf.reduce_sum(weights * means, axis=0)
  variance = tf.reduce_sum(weights * (variances + tf.math.squared_difference(means, mean)), axis=0)
  return (mean, variance), total


@contextlib.contextmanager
def use_standing_statistics(network: keras.Layer, forward: Callable[[int], Any], passes: int
                            ) -> Iterator[None]:
  """Makes `network` normalize in the body with statistics averaged over training passes.

  These are the "standing statistics" of Brock et al. 2019 (arXiv:1809.11096). A generator with
  averaged weights needs them, because its moving statistics belong to the weights being trained.
  Inside `Optimizer.averaged_weights` the passes use the averaged weights. No variable changes.

      with optimizer.averaged_weights(), replicator.use_standing_statistics(
          generator, lambda i: generator(latents[i], training=True), passes=16):
        samples = generator(z, training=False)

  Args:
    network: a network with one or more `GlobalBatchNorm` layers, each called once per pass. Layers
      that are not `trainable` keep their moving statistics.
    forward: called with 0, 1, ..., `passes - 1`; runs the network on a batch, with `training=True`.
    passes: the number of passes.

  Raises:
    UsageError: `passes` is less than 1, or the network has no `GlobalBatchNorm`.
  """
  layers = layers_of(network, (GlobalBatchNorm,))
  if passes < 1 or not layers:
    raise UsageError(f"use_standing_statistics: {passes} passes through {len(layers)} "
                     "GlobalBatchNorm layers; it needs at least one of each")
  layers = [layer for layer in layers if layer.trainable]
  enclosing = values_of_scope()
  moving = [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]
  shares = [1 - layer.momentum for layer in layers for _ in range(2)]
  zeros = {id(v): tf.zeros_like(v.value) for v in moving}
  totals = [0.0] * len(moving)
  for i in range(passes):
    # Starting from zero, one pass moves the statistics to `share` times its moments.
    with VariableScope({**enclosing, **zeros}) as scope:
      forward(i)
    totals = [total + scope.get_current_value(v) / share
              for total, v, share in zip(totals, moving, shares, strict=True)]
  statistics = {id(v): total / passes for v, total in zip(moving, totals, strict=True)}
  with VariableScope({**enclosing, **statistics}):
    yield
