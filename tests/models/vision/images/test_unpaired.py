"""Sources whose examples share a batch without being pairs."""

from models.vision.augmentation.random_view import Augmentation, Augmented, TwoViews
from models.vision.images.image_source import InMemoryImages, SourceOf
from models.vision.images.unpaired import Unpaired

import numpy as np
import pytest
import tensorflow as tf


class Noisy(SourceOf):
  """Images whose first byte is random in the training."""

  def augmented(self, index, seed):
    noise = tf.random.stateless_uniform([1, 1, 1], seed, 0, 1_000_000, tf.int32)
    return {**self.load(index), "noise": noise}

  def digest(self):
    return "noisy"


def numbered(size: int) -> InMemoryImages:
  """Images whose label is their number."""
  return InMemoryImages(np.zeros([size, 1, 1, 1]), np.arange(size), tuple(map(str, range(size))))


def labels(example: dict) -> tuple:
  return tuple(int(part["label"]) for part in example.values())


def test_the_first_source_keeps_its_order_and_others_are_drawn_for_each_position():
  source = Unpaired(a=numbered(30), b=numbered(40))
  assert source.size == 40
  assert [labels(source.load(tf.constant(i, tf.int64))) for i in (0, 29, 39)] == [
      (0, 0), (29, 29), (9, 39)]
  draw = tf.autograph.experimental.do_not_convert(
      lambda i: source.augmented(i, tf.stack([7, i])))
  examples = tf.data.Dataset.range(400).map(draw)
  first, second = np.array([labels(example) for example in examples]).T
  np.testing.assert_array_equal(first, np.arange(400) % 30)
  assert set(second) == set(range(40))
  assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
  assert labels(source.augmented(tf.constant(5, tf.int64), tf.constant([7, 35], tf.int64))) == (
      5, second[35])


def test_sources_augment_with_seeds_of_their_own_and_have_one_digest():
  noisy = Noisy(numbered(3))
  example = Unpaired(a=noisy, b=noisy).augmented(
      tf.constant(0, tf.int64), tf.constant([1, 2], tf.int64))
  assert example["a"]["noise"] != example["b"]["noise"]
  assert len(Unpaired(a=noisy, b=noisy).digest()) == 32
  assert Unpaired(a=noisy, b=numbered(3)).digest() is None


@pytest.mark.parametrize("around", [lambda make: Augmented(make, Augmentation),
                                    lambda make: TwoViews(lambda: Augmented(make, Augmentation))])
def test_random_views_have_their_seeds_here_too(around):
  pixels = np.random.default_rng(0).integers(0, 256, [4, 8, 8, 3], np.uint8)
  source = around(lambda: InMemoryImages(pixels, np.arange(4), tuple("abcd")))
  both = Unpaired(a=source, b=source)
  for position in range(8):
    example = both.augmented(tf.constant(position, tf.int64), tf.constant([3, position], tf.int64))
    assert example["a"]["image"].shape == example["b"]["image"].shape == (8, 8, 3)
