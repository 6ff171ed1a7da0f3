"""Several sources of unrelated examples, in one batch."""

from models.vision.images.image_source import ImageSource, hashed
from replicator.training.inputs.inputs import Nest, digest_of, variant

import numpy as np
import tensorflow as tf


class Unpaired:
  """Examples of several sources: `Unpaired(a=..., b=...)` has `{"a": {"image": ...}, "b": {...}}`.

  An epoch goes once through the largest source. In training, each example of the first source comes
  with random ones of the others, different in each epoch.
  """

  def __init__(self, **sources: ImageSource) -> None:
    self._sources = sources
    self.size = max(source.size for source in sources.values())

  def load(self, index: tf.Tensor) -> dict[str, Nest]:
    """Returns the examples at int64 `index`, which starts over at the end of a smaller source."""
    return {name: source.load(index % source.size) for name, source in self._sources.items()}

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, Nest]:
    """Returns the first source's example at `index`, and others drawn by a seed, int64 [2].

    Sources that augment their examples do so.
    """
    made = {}
    for number, (name, source) in enumerate(self._sources.items()):
      own = tf.random.experimental.stateless_fold_in(seed, number)
      drawn = tf.random.stateless_uniform([], own, 0, source.size, tf.int64, alg="philox")
      # Seeds of variants are nonnegative, as in `replicator.training.inputs.inputs`.
      seed_of_variant = tf.bitwise.bitwise_and(tf.cast(own, tf.int64), tf.int64.max)
      made[name] = variant(source, drawn if number else index % source.size, seed_of_variant)
    return made

  def digest(self) -> str | None:
    """Returns a digest of all sources, if each has one; see `replicator.training.inputs.inputs`."""
    digests = [digest_of(source) for source in self._sources.values()]
    return hashed(np.array(digests)) if all(digests) else None
