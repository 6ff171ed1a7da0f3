"""Sample quality: distances of real images and noise, covered classes, and labels."""

from models.gan.evaluation import sample_quality
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.gan.evaluation.sample_quality import SampleQuality, label_accuracies
from models.gan.latents.distributions import normal_latents
from models.vision.builtin.digits import Digits
from models.vision.images.classes import Classes
from models.vision.images.image_source import InMemoryImages, read, to_unit_range

import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
SOURCE = Digits()  # Its classifier comes with the package.


@pytest.fixture(scope="module")
def quality(tmp_path_factory):
  return SampleQuality(SOURCE, tmp_path_factory.mktemp("run") / "classifier", num_samples=300)


def real(indices):
  return to_unit_range(read(SOURCE, indices)[0]).numpy()


def test_real_images_are_near_and_cover_all_classes(quality):
  asked = []
  def generate(n):
    asked.append(n)
    return real(np.random.default_rng(1).permutation(1797)[:n])
  result = quality.measure(generate)
  noise = quality.measure(lambda n: RNG.uniform(-1, 1, [n, 8, 8, 1]))
  assert asked == [300]
  assert quality.description.startswith("300 real and 300 generated images; 64 features")
  assert "on 359 held-out images (not Inception)" in quality.description
  assert list(result) == ["classifier_frechet_distance", "classes_covered", "classifier_accuracy",
                          "classifier_confidence"]
  assert all(type(value) is float for value in result.values())
  assert result["classifier_frechet_distance"] < noise["classifier_frechet_distance"] / 20
  assert result["classes_covered"] == 10
  assert 0.8 < result["classifier_accuracy"] == noise["classifier_accuracy"] <= 1


@pytest.fixture
def of_pixels(monkeypatch):
  """Instead of training one, a classifier by the first pixel: 10 is the class 1, 20 the class 2."""
  class Classifier:
    accuracy, num_train, num_held_out = 1.0, 1, 1

    def __call__(self, images):
      return images.reshape(len(images), -1)[:, :2], np.eye(4)[images[:, 0, 0, 0] // 10]
  monkeypatch.setattr(sample_quality, "load_or_train", lambda source, folder: Classifier())


def images_of(counts: list[int]) -> np.ndarray:
  """So many images of each class, uint8 [n, 1, 2, 1]."""
  return np.repeat(10 * np.repeat(np.arange(len(counts), dtype=np.uint8), counts), 2
                   ).reshape(-1, 1, 2, 1)


@pytest.mark.parametrize("real, counts, covered", [
    # 20 of 100 images, about 10 of each class: 1 is less than a fifth, and 5 are more.
    *(([50, 50], *row) for row in (
        ([10, 10, 0, 0], 2), ([19, 1, 0, 0], 1), ([15, 5, 0, 0], 2), ([0, 20, 0, 0], 1))),
    # No real image has the last class.
    *(([7, 7, 6], *row) for row in (([5, 5, 5, 5], 3), ([7, 7, 6, 0], 3), ([0, 0, 0, 20], 0)))])
def test_a_class_is_covered_from_a_fifth_of_its_share_of_the_real_images(
    real, counts, covered, of_pixels, tmp_path):
  source = InMemoryImages(images_of(real), np.repeat(np.arange(len(real)), real), tuple("abcd"))
  quality = SampleQuality(source, tmp_path, num_samples=20)
  result = quality.measure(lambda n: to_unit_range(images_of(counts)).numpy())
  assert result["classes_covered"] == covered


@pytest.mark.parametrize("classes, accuracy, lowest", [
    ([0, 1, 0, 1, 0, 1], 1.0, 1.0), ([0, 1, 0, 0, 0, 1], 5 / 6, 2 / 3), ([1, 0, 1, 0, 1, 0], 0, 0)])
def test_a_label_counts_if_the_classifier_finds_it(classes, accuracy, lowest, of_pixels, tmp_path):
  source = InMemoryImages(images_of([3, 3]), np.repeat([0, 1], 3), tuple("ab"))
  quality = SampleQuality(source, tmp_path, num_samples=6)
  drawn = images_of([1, 1])[classes]
  result = quality.measure(lambda n: to_unit_range(drawn).numpy(), Classes.numbered(2))
  assert result["label_accuracy"] == pytest.approx(accuracy)
  assert result["lowest_label_accuracy"] == pytest.approx(lowest)
  # The softmax of the logits 1, 0, 0, 0.
  assert result["classifier_confidence"] == pytest.approx(np.e / (np.e + 3))


def test_classes_without_samples_do_not_count():
  assert label_accuracies(np.array([0, 1, 1]), np.array([0, 1, 4])) == {
      "label_accuracy": pytest.approx(2 / 3), "lowest_label_accuracy": 0.0}
  assert label_accuracies(np.array([0, 1]), np.array([0, 1]))["lowest_label_accuracy"] == 1.0


def test_two_images_of_each_are_enough_and_no_more_are_used_than_there_are(of_pixels, tmp_path):
  source = InMemoryImages(images_of([2]), np.array([0, 0]), ("a", "b"))
  assert SampleQuality(source, tmp_path).num_samples == 2


def test_data_of_one_class_is_drawn_and_not_measured(tmp_path):
  source = InMemoryImages(images_of([9]), np.zeros(9, int), ("all",))
  found = SampleEvaluator(source, str(tmp_path), rows=2)(Colors())
  assert found.scalars == {} and "samples" in found.images
  assert "data of one class; for distances set SampleEvaluator.quality = @Feat" in found.method
  assert not list(tmp_path.iterdir())  # No classifier.


class Colors:
  """A GAN of plain images."""

  latents = staticmethod(normal_latents)
  latent_dim, num_classes = 1, 0

  def generate(self, z, labels):
    return tf.reshape(tf.repeat(tf.tanh(z), 2, 1), [-1, 1, 2, 1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_any_precision_is_accepted(quality, dtype):
  images = real(np.arange(300))
  exact = quality.measure(lambda n: images)["classifier_frechet_distance"]
  result = quality.measure(lambda n: tf.cast(images, dtype).numpy())
  assert result["classifier_frechet_distance"] == pytest.approx(exact, rel=0.1)


def test_images_that_are_not_finite_give_nan_and_no_class_or_label(quality):
  result = quality.measure(lambda n: np.full([n, 8, 8, 1], np.nan), Classes.numbered(10))
  assert result["label_accuracy"] == result["lowest_label_accuracy"] == 0
  assert np.isnan(result["classifier_frechet_distance"])
  assert result["classes_covered"] == 0
  assert np.isnan(result["classifier_confidence"])
