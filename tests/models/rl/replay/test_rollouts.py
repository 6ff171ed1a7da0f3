"""Rollouts: the advantages of steps, and minibatches in which each step occurs once an epoch."""

from models.rl.replay.rollouts import Rollouts, advantages
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps
from replicator import UsageError
from replicator.errors import RunFailed
from replicator.step import context

import numpy as np
import pytest

RNG = np.random.default_rng(0)
# A cut episode, a terminated one, and one that goes on, as the actor closes it.
FLAGS = np.array([CONTINUES] * 3 + [END] + [CONTINUES] * 2 + [TERMINATED, END]
                 + [CONTINUES] * 4 + [END])
REWARDS, VALUES = RNG.normal(size=[2, len(FLAGS)])


def by_definition(t: int, discount: float, gae_lambda: float) -> float:
  """The sum of equation 16, to the end of the episode of timestep t."""
  total, factor = 0.0, 1.0
  while FLAGS[t] != END:
    following = 0.0 if FLAGS[t] == TERMINATED else VALUES[t + 1]
    total += factor * (REWARDS[t] + discount * following - VALUES[t])
    factor *= discount * gae_lambda
    t += 1
  return total


@pytest.mark.parametrize("discount, gae_lambda", [(0.9, 0.8), (1.0, 1.0), (0.9, 0.0)])
def test_advantages_are_those_of_the_definition(discount, gae_lambda):
  found = advantages(REWARDS, FLAGS, VALUES, discount, gae_lambda)
  expected = [by_definition(t, discount, gae_lambda) for t in range(len(FLAGS))]
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.fixture
def rollouts(float64, monkeypatch):
  monkeypatch.setattr(context.run, "global_batch_size", 4)
  evaluate = lambda observations, actions: (10 * observations, actions[:, 0] / 2,
                                            VALUES[:len(actions)])
  return Rollouts((1,), 1, 2, evaluate, 0, length=10, epochs=3, discount=0.9, gae_lambda=0.8)


def timesteps(flags: np.ndarray) -> Timesteps:
  """Timesteps of two streams, by turns; each number says which one it is."""
  m = len(flags)
  number = np.arange(2 * m, dtype=np.float32)
  return Timesteps(np.tile([0, 1], m).astype(np.int32), number[:, np.newaxis],
                   -number[:, np.newaxis], np.repeat(REWARDS[:m], 2).astype(np.float32),
                   np.repeat(flags, 2))


def minibatches(rollouts: Rollouts, steps: range) -> list:
  found = []
  for step in steps:
    with context.entered(np.int64(step)):
      found.append([x.numpy() for x in rollouts.minibatch()])
  return found


def test_each_step_is_in_one_minibatch_of_each_epoch(rollouts):
  rollouts._evaluate = lambda observations, actions: (
      10 * observations, actions[:, 0] / 2, np.repeat(VALUES, 2))
  given = timesteps(FLAGS)
  rollouts.insert(given)
  assert (rollouts.steps, rollouts.updates) == (20, 15)
  expected = np.repeat(advantages(given.reward[::2].astype(float), FLAGS, VALUES, 0.9, 0.8), 2)
  orders = []
  for epoch in range(3):
    parts = minibatches(rollouts, range(5 * epoch, 5 * epoch + 5))
    observation, action, log_probability, advantage, target = map(
        np.concatenate, zip(*parts, strict=True))
    which = (observation[:, 0] / 10).astype(int)
    assert sorted(which) == np.flatnonzero(given.flag != END).tolist()
    np.testing.assert_array_equal(action[:, 0], -which)
    np.testing.assert_array_equal(log_probability, -which / 2)
    np.testing.assert_allclose(advantage, expected[which], rtol=1e-12)
    np.testing.assert_allclose(target, expected[which] + np.repeat(VALUES, 2)[which], rtol=1e-12)
    orders.append(tuple(which))
  rollouts.insert(given)
  orders.append(tuple((np.concatenate([part[0] for part in minibatches(rollouts, range(15, 20))])
                       [:, 0] / 10).astype(int)))
  assert len(set(orders)) == 4


def test_other_steps_take_the_places_of_those_that_failed(rollouts):
  rollouts._evaluate = lambda observations, actions: (observations, actions[:, 0], actions[:, 0])
  rollouts.insert(timesteps(np.array([CONTINUES] * 8 + [END])))
  seen = np.concatenate([part[0] for part in minibatches(rollouts, range(5))])[:, 0]
  assert sorted(seen) == sorted([*range(16), *range(4)])
  before = rollouts.number.numpy()
  rollouts.insert(timesteps(np.array([END])))  # The episode was not found by playing it again.
  assert rollouts.number.numpy() == before == 1


@pytest.mark.parametrize("step", [1, 15])
def test_a_rollout_without_a_step_ends_the_run(rollouts, step):
  rollouts.steps_before(0)
  rollouts.insert(timesteps(np.array([END])))
  with pytest.raises(RunFailed, match=r"^Rollouts: all 20 steps of a rollout failed"):
    rollouts.steps_before(step)


def test_a_rollout_is_due_after_its_updates_and_must_not_be_late(rollouts):
  assert rollouts.steps_before(0) == 20
  with pytest.raises(UsageError, match=r"^Rollouts: the run resumes at step 30, .* does not fit "):
    rollouts.steps_before(30)
  rollouts.insert(timesteps(FLAGS[:4]))
  assert rollouts.steps_before(14) == 20
  for late in (16, 30):
    with pytest.raises(UsageError, match=r"^train.steps_per_call: must divide .* 5 minib.* = 15$"):
      rollouts.steps_before(late)
  assert rollouts.steps_before(15) == 40


def test_minibatches_must_divide_a_rollout(monkeypatch):
  monkeypatch.setattr(context.run, "global_batch_size", 4)
  with pytest.raises(UsageError, match=r"^Rollouts.length = 5: times Environments.number = 2 m"):
    Rollouts((1,), 1, 2, lambda *given: given, 0, length=5)
