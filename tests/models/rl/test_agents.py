"""The training of agents: which environments are open while it runs and after it ended."""

import contextlib
import types

import replicator
from models.rl import agents
from models.rl.acting.actor import Actor
from models.rl.environments.environments import Environments
from replicator import UsageError

import numpy as np
import pytest
import tensorflow as tf


class Agent(tf.Module):
  """Acts at random, and learns nothing."""

  def __init__(self, environments: Environments):
    super().__init__()
    self.replay = types.SimpleNamespace(insert=lambda timesteps: None, size=lambda: 1)
    self.actor = Actor(environments, self.replay)

  def act(self, observations, noise):
    return np.tanh(noise)


@pytest.mark.parametrize("fails", [False, True])
def test_all_environments_are_closed_when_the_training_ends(scripted, monkeypatch, fails):
  log = scripted()

  def train(make_agent, evaluate, before_call, workdir):
    agent = make_agent()
    before_call(agent, 0)
    evaluate(agent)
    assert log.count("made") > log.count("closed")
    if fails:
      raise ArithmeticError("of the training")
    return agent

  monkeypatch.setattr(replicator, "train", train)
  monkeypatch.setattr("models.rl.environments.rendering.frames",
                      lambda *args: ([], "not here"))
  with pytest.raises(ArithmeticError) if fails else contextlib.nullcontext():
    agents.train(Agent, lambda: Environments("Scripted-v0", 2), "unused")
  assert log.count("made") == log.count("closed") > 2


@pytest.mark.parametrize("is_updated", [True, False])
def test_priorities_that_an_agent_never_updates_are_refused(scripted, monkeypatch, is_updated):
  scripted()

  def train(make_agent, evaluate, before_call, workdir):
    agent = make_agent()
    vars(agent.replay).update(prioritized=True, is_updated=False)
    before_call(agent, 0)
    agent.replay.is_updated = is_updated  # By the step.
    before_call(agent, 1)

  monkeypatch.setattr(replicator, "train", train)
  with contextlib.nullcontext() if is_updated else pytest.raises(
      UsageError, match=r"Replay.priority_exponent: .* of Agent never calls self.replay.upd"):
    agents.train(Agent, lambda: Environments("Scripted-v0", 2), "unused")


@pytest.mark.parametrize("left", [0, 7])
def test_a_replay_that_was_not_restored_is_filled_again(scripted, monkeypatch, left):
  scripted()
  steps = []

  def train(make_agent, evaluate, before_call, workdir):
    agent = make_agent()
    agent.actor.environment_steps.assign(5000)
    sizes = iter([left, 7])
    agent.replay.size = lambda: next(sizes)
    agent.actor.collect = lambda act, until, step: steps.append(until)
    before_call(agent, 10)

  monkeypatch.setattr(replicator, "train", train)
  monkeypatch.setattr(agents, "RateLimiter", lambda: types.SimpleNamespace(
      learning_starts=100, environment_steps=lambda step: 5000))
  agents.train(Agent, lambda: Environments("Scripted-v0", 2), "unused")
  assert steps == [5000 if left else 5100]


def test_actors_in_processes_step_their_environments_in_turn():
  environments = Environments("Pendulum-v1", 2, "async")
  with pytest.raises(UsageError, match=r"vectorization = 'async': .* = 2 each .*; use 'sync'"):
    agents.make_actor(environments, types.SimpleNamespace(), None, processes=2)
