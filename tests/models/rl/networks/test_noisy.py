"""Noisy layers: the formulas of Fortunato et al. 2018, in NumPy, and their first weights."""

from models.rl.networks.noisy import NoisyMLP

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)


@pytest.mark.usefixtures("float64")
def test_each_example_has_the_weights_that_its_noise_gives():
  network = NoisyMLP((4, 2), 0.5, tf.nn.relu)
  network.build((None, 3))
  assert network.noise_size == (3 + 4) + (4 + 2)
  for weight in network.trainable_variables:
    weight.assign(RNG.normal(size=weight.shape))
  x, noise = RNG.normal(size=[5, 3]), RNG.normal(size=[5, 13])
  root = np.sign(noise) * np.sqrt(np.abs(noise))
  expected = []
  for row, e in zip(x, root, strict=True):
    for i, (e_in, e_out) in enumerate(((e[:3], e[3:7]), (e[7:11], e[11:]))):
      mean, sigma, bias, bias_sigma = (v.numpy() for v in network.layers[i])
      row = np.maximum(row, 0) if i else row
      row = row @ (mean + sigma * np.outer(e_in, e_out)) + bias + bias_sigma * e_out
    expected.append(row)
  np.testing.assert_allclose(network(x, noise), expected, rtol=1e-12)
  assert len(network.trainable_variables) == 8


def test_first_weights_are_those_of_the_paper():
  keras.utils.set_random_seed(0)
  network = NoisyMLP((200,), 0.5, tf.nn.relu)
  network.build((None, 100))
  mean, sigma, bias, bias_sigma = network.layers[0]
  for weight in (mean, bias):
    assert -0.1 <= np.min(weight) < -0.09 and 0.09 < np.max(weight) <= 0.1
  assert all((weight.numpy() == np.float32(0.05)).all() for weight in (sigma, bias_sigma))
