"""Rewards that are divided by the deviation of discounted returns, against the definition."""

from models.rl.acting.action_noise import Exploration
from models.rl.acting.actor import Actor
from models.rl.acting.reward_normalizer import RewardNormalizer
from models.rl.environments.environments import Environments
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps

import numpy as np
import pytest

DISCOUNT = 0.9
RNG = np.random.default_rng(0)
FLAGS = np.array([CONTINUES, CONTINUES, TERMINATED, END, CONTINUES, END, CONTINUES, CONTINUES])
REWARDS = RNG.normal(3.0, 5.0, [2, len(FLAGS)]).astype(np.float32)


def timesteps(part: slice) -> Timesteps:
  """Those of two streams, by turns."""
  flags = FLAGS[part]
  m = len(flags)
  return Timesteps(np.tile([0, 1], m), np.zeros([2 * m, 1]), np.zeros([2 * m, 1]),
                   REWARDS[:, part].T.reshape(-1), np.repeat(flags, 2))


def returns(part: slice) -> list[float]:
  """All discounted returns so far in both streams."""
  found = []
  for rewards in REWARDS:
    running = 0.0
    for flag, reward in zip(FLAGS[:part.stop], rewards, strict=False):
      running = 0.0 if flag == END else DISCOUNT * running + float(reward)
      found += [] if flag == END else [running]
  return found


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far():
  normalizer = RewardNormalizer(2, discount=DISCOUNT, limit=0.6)
  limited = 0
  for part in (slice(0, 3), slice(3, 4), slice(4, 8)):
    given = timesteps(part)
    found = normalizer.normalized(given)
    expected = given.reward / np.std(returns(part))
    np.testing.assert_allclose(found.reward, np.clip(expected, -0.6, 0.6), rtol=1e-6)
    assert found.reward.dtype == np.float32 and found.flag is given.flag
    limited += (np.abs(expected) > 0.6).sum()
  assert limited > 0
  assert normalizer.count.numpy() == 12


def test_returns_that_never_vary_leave_rewards_as_they_are():
  normalizer = RewardNormalizer(2)
  given = timesteps(slice(0, 1))._replace(reward=np.float32([0.3, 0.3]))
  np.testing.assert_array_equal(normalizer.normalized(given).reward, given.reward)


class Recorder:
  """A replay that keeps what it receives."""

  def __init__(self):
    self.rows: list[Timesteps] = []

  def insert(self, rows: Timesteps) -> None:
    self.rows.append(rows)


def collected(*until: int, values: list | None = None) -> tuple[np.ndarray, list]:
  """The rewards of the last call of an actor that closes its streams; and its variables."""
  recorder = Recorder()
  actor = Actor(Environments("Pendulum-v1", 2), recorder, None, exploration=Exploration(0),
                closes=True, rewards=RewardNormalizer(2, DISCOUNT))
  if values:
    for variable, value in zip(actor.variables, values, strict=True):
      variable.assign(value)
  for each in until:
    actor.collect(lambda observations, noise: np.tanh(noise), each)
  actor.close()
  return recorder.rows[-1], [v.numpy() for v in actor.variables]


def test_an_actor_goes_on_exactly_and_an_open_episode_with_it():
  whole, _ = collected(20, 60)
  _, values = collected(20)
  resumed, _ = collected(60, values=values)
  for part, other in zip(resumed, whole, strict=True):
    assert part.tobytes() == other.tobytes()
  plain = RewardNormalizer(2, DISCOUNT)
  # The streams were closed after 10 steps each, and the returns of their episodes go on.
  rewards = []
  recorder = Recorder()
  actor = Actor(Environments("Pendulum-v1", 2), recorder, None, exploration=Exploration(0))
  for until in (20, 60):
    actor.collect(lambda observations, noise: np.tanh(noise), until)
    rewards.append(plain.normalized(recorder.rows[-1]).reward)
  actor.close()
  np.testing.assert_array_equal(whole.reward[whole.flag != END], rewards[-1])


def test_only_the_replay_sees_normalized_rewards(scripted):
  scripted(length=3)
  recorder = Recorder()
  actor = Actor(Environments("Scripted-v0"), recorder, None, exploration=Exploration(0),
                rewards=RewardNormalizer(1))
  actor.collect(lambda observations, noise: np.full_like(noise, 0.5), 3)
  assert float(actor.scalars()["episode_return"]) == pytest.approx(6.0)
  found = np.array([2.0, 2 + 0.99 * 2, 2 + 0.99 * (2 + 0.99 * 2)])
  np.testing.assert_allclose(recorder.rows[0].reward[:3], 2 / found.std(), rtol=1e-6)
