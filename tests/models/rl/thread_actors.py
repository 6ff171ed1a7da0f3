"""Actors that are threads in place of processes, and a learner that trains on what they send."""

import concurrent.futures
import pickle
import types

from models.rl.acting.action_noise import Exploration
from models.rl.actor_pool.actor_process import Answer
from models.rl.actor_pool.pool import ActorPool
from models.rl.replay.timesteps import CONTINUES, END, Timesteps

import numpy as np
import tensorflow as tf

EPISODE = 7
STRIDE = 10  # Training steps of a compiled call.
HANG_SECONDS = 300


class Dead(Exception):
  """The error that the future of a dead `ThreadActor` raises."""


class ThreadActor:
  """A thread in place of a process. It plays imaginary episodes of 7 steps.

  An observation is [seed, moment]; an action is the policy's first weight.
  """

  DIED = (Dead,)
  made: list
  slow: dict  # The event that orders of an actor wait for, by its number.
  dies_after: dict  # How many orders each actor survives, by number.

  def __init__(self, setup):
    setup = pickle.loads(setup)
    self.k, self.seed = setup.environments.number, setup.seed
    self.exploration = setup.exploration
    self.steps = setup.steps_per_order
    self.moment, self.orders, self.closed, self.alive = 0, 0, False, True
    self.number = len(ThreadActor.made)
    ThreadActor.made.append(self)
    self._executor = concurrent.futures.ThreadPoolExecutor(1)
    self.started = self._executor.submit(lambda: None)

  def work(self, weights):
    return self._executor.submit(self._work, weights)

  def _work(self, weights):
    if self.number in ThreadActor.slow:
      assert ThreadActor.slow[self.number].wait(HANG_SECONDS)
      ThreadActor.slow[self.number].clear()
    if self.orders == ThreadActor.dies_after.get(self.number) or not self.alive:
      raise Dead
    self.orders += 1
    version = pickle.loads(weights)[0]
    rows, episodes = [], 0
    for _ in range(self.steps):
      rows += [(s, self._observation(), version, CONTINUES) for s in range(self.k)]
      self.moment += 1
      if self.moment % EPISODE == 0:
        rows += [(s, self._observation(), 0, END) for s in range(self.k)]
        self.moment += 1
        episodes += self.k
    stream, observation, action, flag = zip(*rows, strict=True)
    m = len(rows)
    return Answer(
        Timesteps(np.array(stream, np.int32), np.array(observation, np.float32),
                  np.array(action, np.float32).reshape(m, 1), np.zeros(m, np.float32),
                  np.array(flag, np.uint8)),
        self.steps * self.k, np.array([self._observation()] * self.k, np.float32), episodes,
        np.full([min(episodes, 10)], 3.0), ["the wind blows"] if self.moment < 10 else [])

  def _observation(self):
    return [self.seed % 2**16, self.moment]

  def cause_of_death(self, error):
    return "old age"

  def close(self):
    self.closed = True
    self._executor.shutdown(cancel_futures=True)


class Learner:
  """Stands in for a replay and a normalizer, and records what a pool inserts."""

  def __init__(self, number=4, processes=2, **settings):
    self.weight = tf.Variable(0.0)
    self.warnings, self.rows, self.batches, self.seen = [], [], [], 0
    environments = types.SimpleNamespace(
        number=number, observation_shape=(2,), observation_dtype="float32", action_size=1,
        frames_per_step=1)
    environments.like = lambda k: types.SimpleNamespace(number=k)
    self.pool = ActorPool(environments, self, self, processes, seed=1, warn=self.warn,
                          **{"steps_per_order": 5, "exploration": Exploration(0), **settings})
    self.act = tf.function(lambda observations, noise: noise * self.weight, autograph=False)

  def warn(self, line):
    """Keeps the line. Slow actors continue when the pool reports a long wait."""
    self.warnings.append(line)
    if "sent nothing" in line:
      for event in ThreadActor.slow.values():
        event.set()

  def insert(self, rows):
    self.batches.append(rows)

  def update(self, observations):
    self.seen += len(observations)
    return []

  def collect(self, until, step):
    """Collects once; returns the timesteps that were inserted."""
    self.weight.assign(step)
    self.batches.clear()
    self.pool.collect(self.act, until, step)
    self.rows += self.batches
    return list(self.batches)

  def collect_until_streams_have(self, count, step=0):
    """Collects from this step on, until each stream has `count` timesteps."""
    while min(len(self.stream(n)) for n in range(4)) < count:
      self.collect(until(10 * step), step)
      step += STRIDE

  def wait_for_actors(self):
    """Waits until all actors are idle."""
    members = self.pool._members
    concurrent.futures.wait([member.running for member in members if member.running])

  @property
  def steps(self):
    return int(self.pool.environment_steps)

  def stream(self, number):
    """All timesteps of a stream: (seed, moment, flag)."""
    return [(*map(int, rows.observation[i]), int(rows.flag[i])) for rows in self.rows
            for i in np.flatnonzero(rows.stream == number)]


def until(step):
  return 20 + step
