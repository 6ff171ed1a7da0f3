"""Replaced goals, against a walk through whole episodes."""

import functools

from models.rl.replay.hindsight import Hindsight, sparse_reward
from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps
from tests.programs.refusals import refusal

import numpy as np
import pytest

GAMMA = 0.9


def episode(number: int, length: int, stream: int = 0, desired: float = -1.0, end: bool = True,
            terminated: bool = False) -> Timesteps:
  """Observes [episode, desired goal, step, achieved goal]: 100 times its number, plus the step."""
  t = np.arange(length + end)
  achieved = 100.0 * number + t
  observation = np.stack([np.full(len(t), number), np.full(len(t), desired), t, achieved], 1)
  flag = np.full(len(t), CONTINUES)
  if end:
    flag[-2:] = TERMINATED if terminated else CONTINUES, END
  reward = np.where(np.append(achieved[1:], np.inf) == desired, 0.0, -1.0)
  return Timesteps(np.full(len(t), stream, np.int32), observation.astype(np.float32),
                   np.zeros([len(t), 1], np.float32), reward.astype(np.float32), flag)


def replay_of(n_step: int = 1, capacity: int = 60, streams: int = 2, **settings) -> Replay:
  return Replay((4,), 1, streams, goals=(3, 1, 1), max_episode_steps=20, capacity=capacity,
                n_step=n_step, discount=GAMMA,
                hindsight=functools.partial(Hindsight, **settings))


@pytest.mark.parametrize("n_step, terminates", [(1, False), (3, False), (1, True), (3, True)])
def test_goals_are_later_ones_of_the_episode_and_rewards_are_theirs(n_step, terminates):
  replay = replay_of(n_step, terminates_at=0.0 if terminates else None)
  last = {}  # The last step that each episode has so far.
  for number, (length, end) in enumerate(  # The streams wrap, and their last episodes go on.
      [(7, True), (9, True), (9, True), (8, True), (12, True), (6, True), (9, False), (4, False)]):
    replay.insert(episode(number, length, number % 2, end=end))
    last[number] = length if end else length - 1
  drawn = replay.sample(2000)
  steps = set()
  for before, after, reward, discount in zip(*(x.numpy() for x in (
      drawn.observation, drawn.next_observation, drawn.reward, drawn.discount)), strict=True):
    number, goal, t, achieved = before
    assert achieved == 100 * number + t
    length = min(n_step, last[number] - t)
    if goal == -1:  # As it was stored.
      expected, follows = -sum(GAMMA ** k for k in range(int(length))), True
    else:
      wanted = goal - 100 * number
      assert t < wanted <= last[number]
      steps.add((number, t, wanted))
      at = wanted - t - 1  # The step that reaches it.
      if terminates:
        length = min(length, at + 1)
      expected = -sum(GAMMA ** k for k in range(int(length)) if k != at)
      follows = not (terminates and at < length)
    np.testing.assert_allclose(reward, expected, rtol=1e-6)
    np.testing.assert_allclose(discount, GAMMA ** length if follows else 0, rtol=1e-6)
    np.testing.assert_array_equal(after, [number, goal, t + length, achieved + length])
  assert np.mean(drawn.observation[:, 1] != -1) == pytest.approx(0.8, abs=0.02)
  assert {n: max(goal for number, _, goal in steps if number == n) for n in range(1, 8)} == {
      n: last[n] for n in range(1, 8)}
  assert {number for number, *_ in steps} == set(range(1, 8))  # The first was overwritten.


def test_all_later_steps_have_the_same_chance():
  replay = replay_of(streams=1)
  replay.insert(episode(0, 5))
  drawn = replay.sample(20_000).observation.numpy()
  goals = drawn[(drawn[:, 2] == 1) & (drawn[:, 1] != -1), 1]
  counts = np.bincount(goals.astype(int), minlength=6)
  assert not counts[:2].any()
  np.testing.assert_allclose(counts[2:] / len(goals), 1 / 4, atol=0.03)


def test_goals_in_float64_keep_their_digits():
  replay = Replay((4,), 1, 1, goals=(3, 1, 1), max_episode_steps=20, capacity=60, n_step=1,
                  observation_dtype="float64", hindsight=functools.partial(Hindsight, share=1.0))
  timesteps, base = episode(0, 5), 1e9  # In float32 the neighbors of 1e9 are 64 apart.
  replay.insert(timesteps._replace(
      observation=timesteps.observation + np.float64([0, base, 0, base])))
  drawn = replay.sample(200)
  seen, after = drawn.observation.numpy(), drawn.next_observation.numpy()
  assert seen.dtype == after.dtype == np.float64 and drawn.reward.dtype == np.float32
  np.testing.assert_array_equal(after[:, 1], seen[:, 1])
  assert set(seen[:, 1] - base) == {1, 2, 3, 4, 5}
  np.testing.assert_array_equal(drawn.reward == 0, seen[:, 1] == after[:, 3])


def test_an_episode_that_ended_otherwise_ends_with_any_goal():
  replay = replay_of(terminates_at=0.0, share=1.0, streams=1)
  replay.insert(episode(0, 5, terminated=True))  # It fell, for example.
  replay.insert(episode(1, 5, desired=105.0, terminated=True))
  drawn = replay.sample(2000)
  number, goal, t = drawn.observation.numpy()[:, :3].T
  ends = drawn.discount.numpy() == 0
  reached = goal == 100 * number + t + 1
  np.testing.assert_array_equal(ends, reached | ((number == 0) & (t == 4)))


def test_rewards_have_a_threshold():
  achieved = np.array([[0.0, 0.0], [0.3, 0.4]])
  found = sparse_reward(achieved, np.zeros(2), threshold=0.49, reached=1.0, missed=0.0)
  assert found.numpy().tolist() == [1, 0]
  assert sparse_reward(achieved, np.zeros(2), threshold=0.51).numpy().tolist() == [0, 0]


@pytest.mark.parametrize("settings, kwargs, words", [
    ({"reward": functools.partial(sparse_reward, threshold=2.0)}, {"desired": 5.0},
     "Hindsight.reward: is 0 where the environment's reward is -1, at a distance of 2 from"),
    ({}, {"desired": 5.0, "terminated": True},
     "Hindsight.terminates_at = None: episodes terminate with the reward 0; set "
     "Hindsight.terminates_at = 0"),
    ({"terminates_at": 0.0}, {"desired": 3.0},
     "Hindsight.terminates_at = 0.0: an episode continues after the reward 0; use None")])
def test_a_reward_that_is_not_that_of_the_environment_is_refused(settings, kwargs, words):
  assert refusal(replay_of(**settings).insert, episode(0, 5, **kwargs)).startswith(words)


def test_an_environment_without_goals_is_refused():
  assert "an 'achieved_goal' and a 'desired_goal'" in refusal(Replay, (4,), 1, 1,
                                                              hindsight=Hindsight)
