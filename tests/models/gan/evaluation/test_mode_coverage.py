"""Mode coverage against closed forms, and with the classifier on real stacked digits."""

import math

import numpy as np
import pytest

from models.gan.evaluation.mode_coverage import ModeCoverage, reverse_kl
from models.vision.builtin.digits import Digits, StackedDigits
from models.vision.images.image_source import read, to_unit_range

SOURCE = StackedDigits()


def test_divergence_of_known_counts():
  assert reverse_kl(np.full(1000, 26)) == pytest.approx(0, abs=1e-12)
  assert reverse_kl(np.eye(1000)[3] * 50) == pytest.approx(math.log(1000))
  # Half of the modes, equally: log 2. Shares 3/4 and 1/4 of two: log 2 minus their entropy.
  assert reverse_kl(np.array([7, 7, 0, 0])) == pytest.approx(math.log(2))
  entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
  assert reverse_kl(np.array([3, 1])) == pytest.approx(math.log(2) - entropy)


@pytest.fixture(scope="module")
def coverage(tmp_path_factory):
  return ModeCoverage(SOURCE, tmp_path_factory.mktemp("run"), num_samples=2000)


@pytest.fixture(scope="module")
def images():
  return to_unit_range(read(SOURCE, np.arange(2000))[0]).numpy()


def test_real_images_show_all_modes(coverage, images):
  asked = []
  def generate(n):
    asked.append(n)
    return images
  result = coverage.measure(generate)
  assert asked == [2000]
  assert coverage.description.startswith("2,000 generated images, each channel read by a class")
  assert list(result) == ["modes_covered", "mode_divergence", "classifier_accuracy"]
  assert all(type(value) is float for value in result.values())
  # Two images of each mode. The classifier reads one in a hundred as another mode.
  assert result["modes_covered"] >= 995
  assert 0 < result["mode_divergence"] < 0.03
  assert result["classifier_accuracy"] == pytest.approx(0.986, abs=0.001)


def test_a_mode_is_the_number_that_the_channels_show(coverage):
  images, labels = read(Digits(), np.arange(3))
  assert labels.tolist() == [0, 1, 2]
  image = np.concatenate([images[2], images[0], images[1]], axis=-1)  # 201
  assert coverage.modes(np.stack([image, image])).tolist() == [201, 201]


def test_images_that_are_not_finite_give_nan_and_no_mode(coverage):
  result = coverage.measure(lambda n: np.full([n, 8, 8, 3], np.nan, np.float32))
  assert np.isnan(result["mode_divergence"]) and result["modes_covered"] == 0


def test_labels_are_compared_with_modes(coverage):
  images, labels = read(SOURCE, np.arange(2000))
  in_turn = to_unit_range(images[np.argsort(labels, kind="stable")[::2]]).numpy()  # 0, 1, ... 999
  result = coverage.measure(lambda n: np.concatenate([in_turn, in_turn]), num_classes=1000)
  assert result["label_accuracy"] > 0.95
  assert result["lowest_label_accuracy"] == 0  # The classifier reads some mode as another.
