"""Several sources whose examples have nothing to do with each other, in one batch."""

from models.vision.images.image_source import ImageSource, hashed
from replicator.training.inputs.inputs import Nest, digest_of, variant

import numpy as np
import tensorflow as tf


class Unpaired:
  """Examples of several sources: `Unpaired(a=..., b=...)` has `{"a": {"image": ...}, "b": {...}}`.

  An epoch goes once through the largest source. In the training, an example of the first stands
  beside random ones of the others, other ones in each epoch.
  """

  def __init__(self, **sources: ImageSource) -> None:
    self._sources = sources
    self.size = max(source.size for source in sources.values())

  def load(self, index: tf.Tensor) -> dict[str, Nest]:
    """The examples at int64 `index`, which starts over at the end of a smaller source."""
    return {name: source.load(index % source.size) for name, source in self._sources.items()}

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, Nest]:
    """The first source's example at `index`, and those of the others that a seed int64 [2] draws.

    Sources that augment their examples do so.
    """
    made = {}
    for number, (name, source) in enumerate(self._sources.items()):
      own = tf.random.experimental.stateless_fold_in(seed, number)
      drawn = tf.random.stateless_uniform([], own, 0, source.size, tf.int64, alg="philox")
      # Seeds of variants are not negative, as those of `replicator.training.inputs.inputs`.
      seed_of_variant = tf.bitwise.bitwise_and(tf.cast(own, tf.int64), tf.int64.max)
      made[name] = variant(source, drawn if number else index % source.size, seed_of_variant)
    return made

  def digest(self) -> str | None:
    """A digest of all sources, if each has one; see `replicator.training.inputs.inputs`."""
    digests = [digest_of(source) for source in self._sources.values()]
    return hashed(np.array(digests)) if all(digests) else None
