"""Mode coverage against closed forms, and with the classifier on real stacked digits."""

import math

from models.gan.evaluation.mode_coverage import ModeCoverage
from models.vision.builtin.digits import Digits, StackedDigits
from models.vision.images.classes import Classes
from models.vision.images.image_source import read, to_unit_range

import numpy as np
import pytest

SOURCE = StackedDigits()


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
  assert coverage.description.startswith(
      "2,000 generated images, each channel read by a digit class")
  assert list(result) == ["modes_covered", "mode_divergence", "classifier_accuracy"]
  assert all(type(value) is float for value in result.values())
  # Two images of each mode. The classifier reads one in a hundred as another mode.
  assert result["modes_covered"] >= 995
  assert 0 < result["mode_divergence"] < 0.03
  assert result["classifier_accuracy"] == pytest.approx(0.986, abs=0.001)


@pytest.mark.parametrize("modes, covered, divergence", [
    (np.arange(2000) % 1000, 1000, 0), (np.arange(2000) % 500, 500, math.log(2)),
    # Shares of 3/4 and 1/4 have the entropy log 4 - 3/4 log 3.
    (np.repeat([3, 7], [1500, 500]), 2, math.log(1000) - math.log(4) + 0.75 * math.log(3))])
def test_the_divergence_of_known_modes(modes, covered, divergence, coverage, images, monkeypatch):
  monkeypatch.setattr(coverage, "modes", lambda images: modes)
  result = coverage.measure(lambda n: images)
  assert result["modes_covered"] == covered
  assert result["mode_divergence"] == pytest.approx(divergence, abs=1e-12)


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
  result = coverage.measure(lambda n: np.concatenate([in_turn, in_turn]),
                            Classes.numbered(1000))
  assert result["label_accuracy"] > 0.95
  assert result["lowest_label_accuracy"] == 0  # The classifier reads some mode as another.
