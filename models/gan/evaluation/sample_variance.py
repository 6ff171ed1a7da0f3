"""The variance of samples compared with that of images: far lower if a generator collapses."""

import replicator

import tensorflow as tf

Moments = list[tf.Tensor]
"""Means `[2, h, w, c]` and mean squares `[2]` of images and of samples."""

COLLAPSE = {"mode collapse": ("sample_variance", "data_variance")}
"""A step's `may_collapse`: the guard warns if samples start to vary far less than images."""


def moments(images: tf.Tensor, samples: tf.Tensor) -> Moments:
  """Returns the moments of this replica's images and samples, each `[n, h, w, c]`.

  They are means over examples, so those of micro-batches and of replicas can be averaged.
  """
  pixels = tf.stack([images, tf.cast(samples, images.dtype)])
  return [tf.reduce_mean(pixels, 1), tf.reduce_mean(tf.square(pixels), [1, 2, 3, 4])]


def variances(of: Moments) -> dict[str, tf.Tensor]:
  """Returns `sample_variance` and `data_variance` over the global batch, averaged over pixels."""
  # Averages moments, not variances, whose average would depend on the number of replicas.
  means, mean_squares = replicator.all_mean(of)
  data, sample = tf.unstack(mean_squares - tf.reduce_mean(tf.square(means), [1, 2, 3]))
  return {"sample_variance": sample, "data_variance": data}
