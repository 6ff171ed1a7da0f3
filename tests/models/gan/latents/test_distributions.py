"""The distributions of latents, by their moments and bounds."""

from models.gan.latents import distributions
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import InMemoryImages
from replicator import random

import gin
import numpy as np
import pytest
import tensorflow as tf

SHAPE = [400, 100]


def test_truncated_normal_latents_stay_within_twice_the_truncation():
  gin.parse_config("truncated_normal_latents.truncation = 0.5")
  z = distributions.truncated_normal_latents("z", SHAPE).numpy()
  assert 0.99 < abs(z).max() <= 1.0
  # 0.8796 is the standard deviation of N(0, 1) within [-2, 2].
  np.testing.assert_allclose(z.std(), 0.5 * 0.8796, rtol=0.01)


def test_uniform_latents_are_uniform_from_minus_1_to_1():
  z = distributions.uniform_latents("z", SHAPE).numpy()
  assert -1 <= z.min() < -0.999 and 0.999 < z.max() < 1
  np.testing.assert_allclose([z.mean(), z.var()], [0, 1 / 3], atol=0.01)


class Step:
  latents = staticmethod(distributions.normal_latents)
  latent_dim = 2

  def __init__(self, num_classes: int, classes: Classes = NO_CLASSES):
    self.num_classes, self.classes = num_classes, classes


def labels_of(step: Step, size: int) -> np.ndarray:
  random.set_seed(0)  # Every draw of a stream differs from the one before.
  return distributions.draw(step, size)[1].numpy()


@pytest.mark.parametrize("counts", [(90, 10), (0, 7, 0, 21), (5, 5, 5)])
def test_labels_are_those_of_random_examples(counts):
  classes = Classes(tuple(map(str, range(len(counts)))), counts)
  labels, shares = labels_of(Step(len(counts), classes), 20_000), np.array(counts) / sum(counts)
  assert labels.dtype == np.int32
  found = np.bincount(labels, minlength=len(counts)) / len(labels)
  np.testing.assert_allclose(found, shares, atol=0.012)  # Four standard deviations.
  assert not found[shares == 0].any()


def test_equal_classes_and_a_step_that_knows_only_their_number_are_drawn_evenly():
  expected = labels_of(Step(3), 50)
  random.set_seed(0)
  assert expected.tolist() == random.uniform("label", [50], 0, 3, tf.int32).numpy().tolist()
  assert labels_of(Step(3, Classes(("a", "b", "c"), (4, 4, 4))), 50).tolist() == expected.tolist()
  assert labels_of(Step(0, Classes()), 4).tolist() == [0, 0, 0, 0]


def test_the_classes_of_a_gan_are_those_of_its_data_or_its_own():
  data = InMemoryImages(np.zeros([2, 1, 1, 1], np.uint8), np.array([1, 1]), ("a", "b"))
  own = Classes(("c", "d"), (3, 1))
  found = distributions.classes_of_gan
  assert found(Step(2, own), data) == Classes(("a", "b"), (0, 2))
  assert found(Step(2, own)) == found(Step(2, own), "no source") == own
  assert found(Step(3, own), data) == Classes.numbered(3)
  assert found(Step(0, own), data) == Classes()
