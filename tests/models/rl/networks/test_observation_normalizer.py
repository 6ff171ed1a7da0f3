"""Running statistics of observations, against statistics of all observations together."""

from models.rl.networks import observation_normalizer
from models.rl.networks.observation_normalizer import Normalizer
from replicator import UsageError
from replicator.step import context

import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
SEEN = RNG.normal([5.0, -1e3, 0.0], [2.0, 1e-2, 1.0], [500, 3]).astype(np.float32)
SEEN[:, 2] = 7.0  # It never changes.


def updated(*parts):
  normalizer = Normalizer((3,))
  for part in parts:
    normalizer.update(part)
  return normalizer


@pytest.mark.parametrize("cuts, largest", [([], 2 ** 24), ([1, 2, 3, 400], 2 ** 24), ([], 100)])
def test_statistics_are_those_of_all_observations(cuts, largest, monkeypatch):
  monkeypatch.setattr(observation_normalizer, "_LARGEST", largest)
  normalizer = updated(*np.split(SEEN, cuts))
  seen = SEEN.astype(np.float64)
  np.testing.assert_allclose(normalizer.mean, seen.mean(0), rtol=1e-12)
  np.testing.assert_allclose(normalizer.sum_of_squares / normalizer.count, seen.var(0), rtol=1e-9)


def test_observations_get_mean_0_and_deviation_1():
  normalized = updated(SEEN)(tf.constant(SEEN)).numpy()
  np.testing.assert_allclose(normalized.mean(0), 0.0, atol=2e-3)  # float32 at mean 1e3
  np.testing.assert_allclose(normalized[:, :2].std(0), 1.0, rtol=2e-3)
  assert np.abs(updated(SEEN)(tf.constant([[1e9, 0.0, 0.0]]))[0, 0]) == 10.0


N, LIMIT = 1000, 10.0
USUAL = RNG.normal([0.0, 50.0], [1.0, 1e-3], [N, 2])


def plain(values):
  return values.mean(0), values.std(0)


@pytest.mark.parametrize("size", [1e4, 1e8, -1e8])
@pytest.mark.parametrize("alone, limit", [(False, 10.0), (True, 2.0)])
def test_an_outlier_counts_as_10_deviations(size, alone, limit):
  """A share p at mean + L s has s^2 = (1 - p) s_0^2 + p (1 - p) d^2, with d = L s / (1 - p)."""
  normalizer = Normalizer((2,), limit=limit)
  usual, other = USUAL.copy(), np.array([[size, size]])
  for part in ([usual, other] if alone else [np.concatenate([usual[:29], other, usual[29:]])]):
    lines = normalizer.update(part)
  p = 1 / (N + 1)
  mean, deviation = plain(usual)
  expected = np.sqrt((1 - p) / (1 - p * LIMIT ** 2 / (1 - p))) * deviation
  found = np.sqrt(normalizer.sum_of_squares / normalizer.count)
  np.testing.assert_allclose(found, expected, rtol=2e-3)
  np.testing.assert_allclose(normalizer.mean,
                             mean + np.sign(size) * p / (1 - p) * LIMIT * expected, rtol=2e-3,
                             atol=2e-3)
  assert normalizer(tf.constant([[size, size]])).numpy().tolist() == [[np.sign(size) * limit] * 2]
  [line] = lines
  assert f"observation[0] (and 1 more) was once {size:g}" in line


def test_what_is_no_outlier_counts_as_it_is():
  often, far, rare = USUAL[:, :1].copy(), USUAL[:, :1].copy(), np.zeros([N, 1])
  often[::50] = 1e3
  far[500] = 50.0
  rare[::300] = 0.01
  small = np.concatenate([USUAL[:90, :1], [[1e6]]])  # Too few to say what is usual.
  for values, parts in ((often, 3), (far, 3), (rare, 1), (small, 3)):
    normalizer = Normalizer((1,))
    for part in np.array_split(values, parts):
      assert not normalizer.update(part)
    mean, deviation = plain(values)
    np.testing.assert_allclose(normalizer.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(normalizer.sum_of_squares / len(values)), deviation,
                               rtol=1e-9)


def test_absolute_times_in_float64_are_as_those_from_0_and_in_float32_are_a_line():
  seconds = np.arange(60.0)[:, np.newaxis]
  found = []
  for start in (0.0, 1.78e9):
    normalizer = Normalizer((1,))
    assert normalizer.update(start + seconds) == []
    found.append(normalizer(tf.constant(start + seconds)).numpy())
  assert found[1].dtype == np.float32
  np.testing.assert_allclose(found[1], found[0], atol=1e-6)
  normalizer = Normalizer((1,))
  for start in (1e8, 1.78e9):
    normalizer = Normalizer((1,))
    [line] = normalizer.update((start + seconds).astype(np.float32))
    assert "set Environments.observation_dtype = 'float64'" in line
    assert normalizer.update((start + seconds).astype(np.float32)) == []  # It was said.
  assert Normalizer((1,)).update((4e6 + 1e3 * seconds).astype(np.float32)) == []


def test_numbers_that_all_look_alike_are_a_line():
  values = USUAL.copy()
  values[::50, 1] = 1e8
  [line] = Normalizer((2,)).update(values)
  assert "observation[1] hardly changes for the policy" in line and "as far as 1e+08" in line


def test_networks_that_saw_normalized_observations_must_not_see_others():
  normalizer = Normalizer((3,), enabled=False)
  normalizer.count.assign(10.0)
  with pytest.raises(UsageError, match=r"^Normalizer.enabled = False: the networks of this run"):
    normalizer.update(SEEN)


def test_networks_that_saw_others_must_not_see_normalized_observations(monkeypatch):
  normalizer = Normalizer((3,))
  normalizer.update(SEEN)
  monkeypatch.setattr(context.run.outside, "step", 5)
  normalizer.update(SEEN)
  line = r"^Normalizer.enabled = True: the networks {} were trained on observations that are not"
  with pytest.raises(UsageError, match=line.format("of this run")):
    Normalizer((3,)).update(SEEN)
  with pytest.raises(UsageError, match=line.format("taken from another run")):
    Normalizer((3,)).check_taken()
  normalizer.check_taken()
  Normalizer((3,), enabled=False).check_taken()
  normalizer.enabled = False
  with pytest.raises(UsageError, match=r"^Normalizer.enabled = False: the networks taken from"):
    normalizer.check_taken()


def test_frozen_statistics_stay_as_they_are():
  normalizer = updated(SEEN)
  before = normalizer(tf.constant(SEEN)).numpy()
  normalizer.frozen = True
  assert normalizer.update(10 * SEEN) == []
  np.testing.assert_array_equal(normalizer(tf.constant(SEEN)), before)


def test_a_pixel_that_never_changed_may_change():
  images = RNG.integers(0, 256, [20, 8, 8, 2], np.uint8)
  images[:, 0, 0] = 100
  normalizer = Normalizer((8, 8, 2))
  for part in np.split(images, [7]):
    normalizer.update(part)
  found = normalizer(tf.constant(images)).numpy()
  np.testing.assert_allclose(found.mean((0, 1, 2)), 0.0, atol=1e-6)
  np.testing.assert_allclose(found.std((0, 1, 2)), 1.0, rtol=1e-5)
  images[0, 0, 0] = 101
  moved = normalizer(tf.constant(images)).numpy() - found
  assert moved[0, 0, 0].min() > 0.01 and moved.max() < 0.02


def test_without_observations_or_disabled_it_changes_nothing():
  values = tf.constant([[1.0, -2.0, 3.0]])
  np.testing.assert_array_equal(Normalizer((3,))(values), values)
  disabled = Normalizer((3,), enabled=False)
  disabled.update(SEEN)
  np.testing.assert_array_equal(disabled(100.0 * values), 100.0 * values)
