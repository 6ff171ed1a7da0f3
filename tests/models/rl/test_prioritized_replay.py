"""Transitions sampled by the errors of the critic."""

import numpy as np
import pytest

from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import CONTINUES, END
from tests.models.rl.made_timesteps import give_errors, timesteps_of


def prioritized_replay(**settings) -> Replay:
  """A replay of eight transitions, at the places 0 ... 7."""
  replay = Replay((2,), 1, 1, **{"capacity": 9, "n_step": 1, "priority_exponent": 0.5, **settings})
  replay.insert(timesteps_of(0, [CONTINUES] * 9))
  return replay


def priorities(replay: Replay) -> np.ndarray:
  return replay.priorities.levels[0].numpy().reshape(-1)[:replay.stream_capacity]


def test_prioritized_samples_and_their_weights_follow_the_errors():
  replay = prioritized_replay(importance_exponent=0.6)
  errors = np.array([1.0, 4, -9, 16, 25, 0.01, 36, 49])
  give_errors(replay, list(range(8)), errors)
  probability = np.sqrt(np.abs(errors)) / np.sqrt(np.abs(errors)).sum()
  drawn = replay.sample(100_000)
  count = np.bincount(drawn.index, minlength=8)
  assert ((count - 1e5 * probability) ** 2 / (1e5 * probability)).sum() < 7 + 4 * np.sqrt(14)
  weight = (8 * probability) ** -0.6
  np.testing.assert_allclose(drawn.weight, (weight / weight.max())[drawn.index], rtol=1e-4)


def test_new_transitions_get_the_largest_priority_so_far_and_overwritten_ones_lose_theirs():
  replay = prioritized_replay()
  give_errors(replay, [0, 1], [16.0, 4.0])
  np.testing.assert_allclose(priorities(replay), [4, 2, 1, 1, 1, 1, 1, 1, 0], rtol=1e-6)
  give_errors(replay, [0], [0.0])
  replay.insert(timesteps_of(0, [CONTINUES, END, CONTINUES]))  # Overwrites the places 0, 1 and 2.
  give_errors(replay, [1, 2, 3], [9.0, 9.0, 9.0])  # Sampled before they were overwritten.
  np.testing.assert_allclose(priorities(replay), [4, 0, 0, 3, 1, 1, 1, 1, 4], rtol=1e-6)
  assert replay.size() == 7


def test_a_transition_sampled_twice_gets_its_greater_priority_and_one_without_error_keeps_some():
  replay = prioritized_replay()
  give_errors(replay, [3, 4, 3, 5, 6], [9.0, 0.0, 16.0, np.nan, np.inf])
  found = priorities(replay)
  assert (found[3], found[5], found[6]) == (pytest.approx(4), 1, 1)
  assert 0 < found[4] < 0.01
  assert replay.largest_priority.numpy() == pytest.approx(4)


def test_without_priorities_an_update_changes_nothing():
  replay = prioritized_replay(priority_exponent=0.0)
  give_errors(replay, [0], [9.0])
  assert not replay.prioritized
  assert priorities(replay).tolist() == [1] * 8 + [0]
