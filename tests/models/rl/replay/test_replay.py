"""Transitions sampled from the replay, against a NumPy reference that keeps whole episodes."""


from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps
from replicator import UsageError
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf


def timesteps_of(stream, flag, seed: int = 0, size: int = 2) -> Timesteps:
  """Timesteps with random contents."""
  rng, m = np.random.default_rng(seed), len(flag)
  return Timesteps(np.broadcast_to(np.int32(stream), m),
                   rng.normal(size=[m, size]).astype(np.float32),
                   rng.normal(size=[m, 1]).astype(np.float32),
                   rng.normal(size=m).astype(np.float32), np.array(flag, np.uint8))


def random_timesteps(m: int, streams: int, seed: int) -> Timesteps:
  """Streams of different speeds, with episodes that are short, long, terminated and truncated."""
  rng = np.random.default_rng(seed)
  stream = rng.choice(streams, m, p=np.arange(1, streams + 1) / (streams * (streams + 1) / 2))
  return timesteps_of(stream, rng.choice(3, m, p=[0.8, 0.1, 0.1]), seed)


def give_errors(replay: Replay, index: list[int], errors: list[float]) -> None:
  drawn = replay.sample(1)._replace(index=tf.constant(index, tf.int64))
  replay.update_priorities(drawn, tf.constant(errors))


class Reference:
  """Keeps all timesteps of each stream, and walks along them."""

  def __init__(self, streams: int, rows: int, n_step: int, discount: float, stack: int = 1):
    self.streams: list[list] = [[] for _ in range(streams)]
    self.rows, self.n_step, self.discount, self.stack = rows, n_step, discount, stack

  def insert(self, rows: Timesteps) -> Timesteps:
    """Keeps timesteps; returns them with the stacks of observations that an agent sees."""
    seen = []
    for stream, *row in zip(*rows, strict=True):
      before = self.streams[stream]
      past = [] if not before or before[-1][3] == END else before[-1][0][2:].tolist()
      newest = row[0].tolist()
      row[0] = np.array((past or newest * (self.stack - 1)) + newest, np.float32)
      before.append(row)
      seen.append(row[0])
    return rows._replace(observation=np.array(seen, np.float32).reshape(-1, 2 * self.stack))

  def drawable(self) -> dict:
    """Observation, action, reward, discount and next observation by place of each transition."""
    found = {}
    for stream, rows in enumerate(self.streams):
      for number in range(max(0, len(rows) - self.rows + self.stack - 1), len(rows) - self.n_step):
        if rows[number][3] != END:
          found[stream * self.rows + number % self.rows] = self._walk(rows, number)
    return found

  def _walk(self, rows: list, first: int) -> tuple:
    total, discount = 0.0, 1.0
    for number in range(first, first + self.n_step):
      total += discount * rows[number][2]
      discount *= self.discount
      if rows[number][3] == TERMINATED:
        discount = 0.0
      if rows[number][3] == TERMINATED or rows[number + 1][3] == END:
        break
    return rows[first][0], rows[first][1], total, discount, rows[number + 1][0]


def check(transitions, expected: dict) -> None:
  """Checks that every transition is the expected one of its place."""
  index = transitions.index.numpy()
  assert set(index) <= set(expected)
  fields = [x.numpy() for x in transitions[:5]]
  for place, *found in zip(index, *fields, strict=True):
    for value, right in zip(found, expected[place], strict=True):
      np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_step, streams, capacity, priority_exponent, stack", [
    (1, 1, 7, 0.7, 1), (3, 4, 200, 0.0, 1), (5, 3, 60, 0.7, 1), (1, 1, 7, 0.7, 3),
    (1, 2, 10, 0.0, 4), (3, 4, 200, 0.7, 2), (5, 3, 60, 0.7, 4)])
def test_any_sequence_of_inserts_gives_the_transitions_of_whole_episodes(
    n_step, streams, capacity, priority_exponent, stack):
  replay = Replay((2 * stack,), 1, streams, capacity=capacity, n_step=n_step, discount=0.9,
                  priority_exponent=priority_exponent, stack=stack)
  assert replay.observation.shape == (streams * replay.stream_capacity, 2)
  reference = Reference(streams, replay.stream_capacity, n_step, 0.9, stack)
  rng = np.random.default_rng(n_step)
  for i, m in enumerate([1, 0, 30, 1, 2, 3, 5, 8, 2 * capacity, *rng.integers(0, 20, 12)]):
    rows = random_timesteps(int(m), streams, i)
    replay.insert(reference.insert(rows))
    expected = reference.drawable()
    assert replay.size() == len(expected)
    if expected:
      drawn = replay.sample(64)
      check(drawn, expected)
      replay.update_priorities(drawn, rng.normal(size=64))
  assert len(set(replay.sample(20_000).index.numpy())) == len(expected)


# ---- What it stores, and what it refuses --------------------------------------------------------


def test_a_million_timesteps_take_little_more_than_their_content():
  replay = Replay((24,), 6, 8)
  held = sum(int(np.prod(v.shape)) * v.dtype.size for v in replay.variables)
  assert held < 1.2 * 1_000_000 * (24 + 6) * 4
  assert replay.stream_capacity * 8 == 1_000_000


def test_pixels_are_stored_as_bytes():
  replay = Replay((4, 4, 3), 2, 1, observation_dtype="uint8", capacity=10, n_step=1)
  pixels = np.random.default_rng(0).integers(0, 256, [6, 4, 4, 3])
  replay.insert(timesteps_of(0, [CONTINUES] * 6)._replace(
      observation=pixels.astype(np.uint8), action=np.zeros([6, 2])))
  drawn = replay.sample(5)
  assert (replay.observation.dtype, drawn.observation.dtype) == (tf.uint8, tf.float32)
  np.testing.assert_array_equal(drawn.observation, pixels[drawn.index])
  np.testing.assert_array_equal(drawn.next_observation, pixels[drawn.index.numpy() + 1])


def test_rewards_are_clipped_one_by_one_and_observations_change_when_they_are_sampled():
  replay = Replay((2,), 1, 1, capacity=9, n_step=2, discount=1.0, reward_limit=1.0,
                  augment=lambda observations: -observations)
  rows = timesteps_of(0, [CONTINUES] * 3)._replace(reward=np.float32([-7, 0.25, 7]))
  replay.insert(rows)
  drawn = replay.sample(4)
  np.testing.assert_array_equal(drawn.reward, [-0.75] * 4)
  np.testing.assert_array_equal(drawn.observation, [-rows.observation[0]] * 4)
  np.testing.assert_array_equal(drawn.next_observation, [-rows.observation[2]] * 4)
  assert rows.reward[0] == -7


def test_the_end_of_an_episode_may_have_any_action_and_reward():
  replay = Replay((2,), 1, 1, capacity=9, n_step=2)
  rows = timesteps_of(0, [CONTINUES, END, CONTINUES, CONTINUES, CONTINUES])
  rows.reward[1] = rows.action[1] = np.nan
  replay.insert(rows)
  assert np.isfinite(replay.sample(20).reward).all()


@pytest.mark.parametrize("change, message", [
    ({"stream": np.array([0, 2])}, "stream holds 0 to 2; must be from 0 to 1"),
    ({"stream": np.array([0, -1])}, "stream holds -1 to 0"),
    ({"stream": np.array([0.0, 1.0])}, r"stream is float64 \[2\]; the replay stores int32 \[2\]"),
    ({"flag": np.array([0, 3])}, "flag holds 0 to 3; must be from 0 to 2"),
    ({"flag": np.array([0])}, r"flag is int64 \[1\]; the replay stores int64 \[2\]"),
    ({"observation": np.zeros([2, 3])}, r"observation is float64 \[2, 3\]; the replay stores"),
    ({"action": np.zeros([2])}, r"action is float64 \[2\]; the replay stores float32 \[2, 1\]"),
    ({"reward": np.array([1j, 0])}, r"reward is complex128 \[2\]; the replay stores float32 \[2\]"),
    ({"reward": np.array([1e300, 0])}, "the reward of timestep 0, in stream 0, is not finite in"),
    ({"reward": np.array([0, np.nan])}, "the reward of timestep 1, in stream 1, is not finite"),
    ({"observation": np.array([[0, np.inf], [0, 0]])},
     "the observation of timestep 0, in stream 0")])
def test_timesteps_that_do_not_fit_are_refused_together(change, message):
  replay = Replay((2,), 1, 2, capacity=20, n_step=1)
  rows = timesteps_of([0, 1], [CONTINUES] * 2)
  with pytest.raises(UsageError, match=message):
    replay.insert(rows._replace(**change))
  assert replay.written.numpy().tolist() == [0, 0]


# ---- Priorities ----------------------------------------------------------------------------------


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


def test_errors_of_another_shape_are_refused():
  replay = Replay([2], 1, 1, capacity=10, n_step=1, priority_exponent=0.5)
  replay.insert(timesteps_of(0, [0] * 4, 0))
  drawn = replay.sample(2)
  assert "the errors are [2, 1]; give one for each transition, [n]" in refusal(
      replay.update_priorities, drawn, tf.zeros([2, 1]))


def test_another_length_of_transitions_is_refused():
  replay, other = prioritized_replay(), prioritized_replay(n_step=2)
  other.n_step.assign(replay.n_step)  # As a checkpoint does.
  with pytest.raises(UsageError, match=r"^Replay.n_step = 2: .* has transitions of n_step = 1; "):
    other.insert(timesteps_of(0, [CONTINUES]))


def test_without_priorities_an_update_changes_nothing():
  replay = prioritized_replay(priority_exponent=0.0)
  give_errors(replay, [0], [9.0])
  assert not replay.prioritized
  assert priorities(replay).tolist() == [1] * 8 + [0]


def test_observations_of_float64_keep_their_digits():
  replay = Replay((2,), 1, 1, observation_dtype="float64", stack=2, capacity=9, n_step=1)
  given = timesteps_of(0, [CONTINUES] * 4, size=2)
  given = given._replace(observation=1.78e9 + np.arange(8.0).reshape(4, 2))
  replay.insert(given)
  drawn = replay.sample(50)
  for found, first in ((drawn.observation, 1), (drawn.next_observation, 3)):
    assert found.dtype == tf.float64
    assert set(found.numpy()[:, 1] - 1.78e9) == {first, first + 2.0, first + 4.0}
