"""Noise of all colors: its variance, its spectrum, and that it is a function of the step."""

from models.rl.acting.action_noise import (
  ActionNoise,
  Exploration,
  HeldNoise,
  OrnsteinUhlenbeck,
  PinkNoise,
  evaluation_seed,
)

import numpy as np
import pytest

STEPS = 128


def made(noise, n: int = 2000, **settings) -> ActionNoise:
  return ActionNoise(3, n, 1, Exploration(noise=noise, **settings), STEPS)


def signals(noise) -> np.ndarray:
  """Independent signals of one and a half episodes: `[steps, n]`."""
  drawn = made(noise)
  return np.stack([drawn.noise(step)[:, 0] for step in range(STEPS * 3 // 2)])


@pytest.mark.parametrize("noise", [None, PinkNoise(), PinkNoise(0.0), OrnsteinUhlenbeck(),
                                   HeldNoise(5)], ids=str)
def test_noise_is_normal_at_each_step(noise):
  found = signals(noise)
  assert found.dtype == np.float32
  np.testing.assert_allclose(found.mean(1), 0.0, atol=0.12)
  np.testing.assert_allclose(found.std(1), 1.0, atol=0.08)
  assert np.abs(found).max() > 4.0  # Of 400,000 numbers.


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_the_power_of_pink_noise_falls_with_the_frequency(exponent):
  power = np.square(np.abs(np.fft.rfft(signals(PinkNoise(exponent))[:STEPS], axis=0))).mean(1)
  slope = np.polyfit(np.log(np.arange(1, STEPS // 2)), np.log(power[1:-1]), 1)[0]
  assert slope == pytest.approx(-exponent, abs=0.03)
  assert power[0] == pytest.approx(power[1], rel=0.15)


def test_ornstein_uhlenbeck_noise_forgets_a_share_in_each_step():
  found = signals(OrnsteinUhlenbeck(0.2))
  for k in (1, 5):
    kept = (found[k:STEPS] * found[:STEPS - k]).mean()
    assert kept == pytest.approx(0.8 ** k, abs=0.02)
  assert abs((found[STEPS] * found[STEPS - 1]).mean()) < 0.1  # Another signal begins.


def test_held_noise_changes_after_some_steps_and_with_the_signal():
  found = signals(HeldNoise(5))
  changes = np.flatnonzero((found[1:] != found[:-1]).any(1)) + 1
  assert changes.tolist() == [*range(5, STEPS, 5), *range(STEPS, len(found), 5)]


@pytest.mark.parametrize("noise", [PinkNoise(), OrnsteinUhlenbeck(), HeldNoise()], ids=str)
def test_noise_is_a_function_of_the_step(noise):
  found = signals(noise)
  for step in (STEPS + 9, 5, 100):
    np.testing.assert_array_equal(made(noise).noise(step)[:, 0], found[step])


def test_environments_share_a_scale_or_have_their_own():
  plain = made(None, 3).noise(0)[:, 0]
  for settings, scales in (({"scale": 0.5}, 0.5), ({"scale": (1, 2, 3)}, [1, 2, 3]),
                           ({"scale": 0.4, "alpha": 7.0}, [0.4, 0.4 ** 4.5, 0.4 ** 8])):
    np.testing.assert_allclose(made(None, 3, **settings).noise(0)[:, 0], plain * scales, rtol=1e-6)


def test_seeds_of_episodes_fit_31_bits_and_differ():
  noise = made(None)
  seeds = [noise.episode_seed(i, j) for i in range(20) for j in range(20)]
  seeds += [evaluation_seed(episode) for episode in range(400)]
  assert min(seeds) >= 0 and max(seeds) < 2**31 and len(set(seeds)) == 800


def test_filtered_noise_of_endless_episodes_fits_the_memory():
  noise = ActionNoise(0, 1, 1, Exploration(noise=HeldNoise(5)), 10**12)
  assert noise.noise(10**6).shape == (1, 1)
