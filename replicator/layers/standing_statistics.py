"""Batch norm statistics for sampling, which do not lag behind the weights as moving averages do."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from replicator.errors import UsageError
from replicator.internals.keras_internals import VariableScope, values_of_scope
from replicator.layers.batch_norm import GlobalBatchNorm
from replicator.layers.inspection import layers_of


@contextlib.contextmanager
def use_standing_statistics(network: keras.Layer, forward: Callable[[int], Any], passes: int
                            ) -> Iterator[None]:
  """A context in which `network` normalizes with statistics averaged over training passes.

  These are the "standing statistics" of Brock et al. 2019 (arXiv:1809.11096). A generator with
  averaged weights needs them, because the moving statistics belong to the weights in training.
  Inside `Optimizer.averaged_weights` the passes use the averages. No variable changes.

      with optimizer.averaged_weights(), replicator.use_standing_statistics(
          generator, lambda i: generator(latents[i], training=True), passes=16):
        samples = generator(z, training=False)

  Args:
    network: a network with one or more `GlobalBatchNorm` layers, each called once per pass. Those
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
    # From zero, one pass moves the statistics by their share of its moments.
    with VariableScope({**enclosing, **zeros}) as scope:
      forward(i)
    totals = [total + scope.get_current_value(v) / share
              for total, v, share in zip(totals, moving, shares, strict=True)]
  statistics = {id(v): total / passes for v, total in zip(moving, totals, strict=True)}
  with VariableScope({**enclosing, **statistics}):
    yield
