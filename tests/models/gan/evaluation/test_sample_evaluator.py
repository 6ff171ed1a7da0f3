"""Pictures and numbers of an evaluation of samples, and its calls of the generator."""

from models.gan.evaluation.sample_evaluator import SampleEvaluator, samples
from models.gan.latents.distributions import normal_latents
from models.vision.images.classes import Classes
from models.vision.images.image_source import InMemoryImages
from replicator import random
from replicator.step import context

import numpy as np
import pytest
import tensorflow as tf


class Gan:
  """Paints the label of each image, and keeps the codes."""

  latents = staticmethod(normal_latents)
  latent_dim = 3

  def __init__(self, num_classes: int):
    self.num_classes = num_classes
    self.codes: list[np.ndarray] = []

  def generate(self, z, labels):
    self.codes.append(z.numpy())
    return np.broadcast_to(labels.numpy()[:, None, None, None] / 8.0, [len(z), 2, 2, 1])


class Quality:
  """Measures how many images it gets."""

  description = "in words"

  def __init__(self, data, folder):
    self.made_with = data, folder

  def measure(self, generate, classes):
    return {"images": len(generate(7)), "classes": len(classes)}


def test_an_evaluation_has_a_picture_and_the_numbers_of_its_quality():
  made = []
  make = lambda *given: made.append(given) or Quality(*given)
  evaluator = SampleEvaluator("data", "folder", make, rows=3)
  for _ in range(2):
    found = evaluator(gan := Gan(num_classes=4))
  assert made == [("data", "folder")]  # Its classifier is trained once.
  assert found.scalars == {"images": 7, "classes": 4}
  assert found.method == "in words; labels in the proportions of the data"
  assert [len(z) for z in gan.codes] == [9, 7]
  colors = found.images["samples"][16::33, 16::33, 0]  # The middle of each enlarged image.
  levels = np.round((np.array([0, 1, 2, 3, 0, 1, 2, 3, 0]) / 8 + 1) * 127.5)
  np.testing.assert_array_equal(colors.ravel(), levels)


@pytest.mark.parametrize("balanced, words, counts", [
    (False, "the proportions of the data", [9, 0, 1]), (True, "equal proportions", [5, 0, 5])])
def test_labels_have_the_shares_of_the_data_and_the_picture_has_all(balanced, words, counts):
  labels = np.array([0, 2, *[0] * 8])
  data = InMemoryImages(np.zeros([10, 2, 2, 1], np.uint8), labels, ("a", "b", "c"))
  given = []

  class Measured(Quality):
    def measure(self, generate, classes):
      given.append((8 * generate(10)[:, 0, 0, 0], classes.in_shares(10)))
      return {}

  found = SampleEvaluator(data, "folder", Measured, rows=2, balanced=balanced)(Gan(num_classes=3))
  [(drawn, told)] = given
  assert np.bincount(drawn.astype(int)).tolist() == counts and drawn.tolist() == told.tolist()
  assert found.method == f"in words; labels in {words}"
  colors = found.images["samples"][16::33, 16::33, 0]
  assert len(np.unique(colors)) == 2 and colors[0, 0] == colors[1, 0]  # 0, 2, 0, 2.


class Mirror(Gan):
  """Reconstructs an image as itself, a tenth brighter."""

  encoder = True

  def reconstruct(self, images, labels):
    self.reconstructed = images, labels
    return tf.cast(images, tf.float32) / 127.5 - 0.9


def test_a_step_with_an_encoder_reconstructs_images_of_the_source():
  images = np.zeros([10, 2, 2, 1], np.uint8) + np.arange(10, dtype=np.uint8)[:, None, None, None]
  source = InMemoryImages(images, np.arange(10), class_names=tuple("0123456789"))
  found = SampleEvaluator("data", "folder", Quality, rows=2, reconstructed=source)(
      gan := Mirror(num_classes=4))
  images, labels = gan.reconstructed
  assert images[:, 0, 0, 0].tolist() == labels.tolist() == [0, 5]
  assert found.scalars["reconstruction_error"] == pytest.approx(0.01, rel=1e-5)
  assert found.scalars["images"] == 7
  without = SampleEvaluator("data", "folder", Quality, rows=2)(Gan(num_classes=4))
  assert found.images["samples"].shape[1] > 1.5 * without.images["samples"].shape[1]


def test_an_encoder_without_reconstruct_is_no_fault_of_the_evaluation():
  gan = Gan(num_classes=4)
  gan.encoder = True
  assert "reconstruction_error" not in SampleEvaluator("data", "folder", Quality)(gan).scalars


def test_samples_have_all_classes_in_turn_and_come_in_batches():
  gan = Gan(num_classes=3)
  found = samples(gan, 7, classes=Classes.numbered(3), batch_size=3)
  assert (8 * found[:, 0, 0, 0]).tolist() == [0, 1, 2, 0, 1, 2, 0]
  assert [len(z) for z in gan.codes] == [3, 3, 1]
  samples(gan := Gan(num_classes=0), 501)
  assert [len(z) for z in gan.codes] == [250, 250, 1]


def test_parts_of_samples_are_parts_of_all():
  whole, of_parts = Gan(num_classes=3), Gan(num_classes=3)
  images = samples(whole, 10)
  parts = [samples(of_parts, 10, slice(i, i + 4), batch_size=3) for i in (0, 4, 8)]
  np.testing.assert_array_equal(np.concatenate(parts), images)
  np.testing.assert_array_equal(np.concatenate(of_parts.codes), whole.codes[0])


def test_every_evaluation_has_the_same_codes_of_the_seed_of_the_run():
  first, later, other = (Gan(num_classes=0) for _ in range(3))
  samples(first, 4)
  with context.entered(tf.constant(9, tf.int64)):
    random.normal("evaluation", [4, 3])
    samples(later, 4)
  np.testing.assert_array_equal(first.codes, later.codes)
  random.set_seed(1)
  samples(other, 4)
  assert not np.isin(other.codes, first.codes).any()
