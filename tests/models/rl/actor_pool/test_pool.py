"""The actor pool, with threads in place of processes: orders, ages, deaths, resume."""

import itertools
import threading

from models.rl.acting.action_noise import Exploration
from models.rl.actor_pool import pool
from models.rl.replay.timesteps import CONTINUES, END
from replicator.errors import RunFailed, UsageError
from replicator.step import context
from tests.models.rl.thread_actors import EPISODE, STRIDE, Learner, ThreadActor, until

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def threads(monkeypatch):
  monkeypatch.setitem(pool.PLACES, "local", ThreadActor)
  monkeypatch.setattr(ThreadActor, "made", [], raising=False)
  monkeypatch.setattr(ThreadActor, "slow", {}, raising=False)
  monkeypatch.setattr(ThreadActor, "dies_after", {}, raising=False)
  yield
  for event in ThreadActor.slow.values():
    event.set()
  for actor in ThreadActor.made:
    actor.close()


def moments(stream):
  """The moments of a stream, one list for each of its actors, in the order of the actors."""
  lives = {}
  for seed, moment, _ in stream:
    lives.setdefault(seed, []).append(moment)
  return list(lives.values())


def test_there_are_never_fewer_steps_than_due_and_never_many_more():
  learner = Learner()
  for step in range(0, 40 * STRIDE, STRIDE):
    learner.collect(until(step), step)
    assert until(step) <= learner.steps <= until(step) + 4 * 5
  actions = sum((rows.flag != END).sum() for rows in learner.rows)
  assert actions == learner.steps
  assert learner.seen == sum(len(rows.flag) for rows in learner.rows)
  assert float(learner.pool.scalars()["episode_return"]) == 3.0
  assert int(learner.pool.episodes) == sum((rows.flag == END).sum() for rows in learner.rows)


def test_actors_act_while_the_learner_trains():
  learner = Learner()
  learner.collect(until(0), 0)
  before = learner.steps
  learner.wait_for_actors()
  learner.collect(0, 10)  # Nothing is due, but the actors went on.
  assert learner.steps > before


def test_no_policy_becomes_older_than_allowed(monkeypatch):
  # An order of the first actor ends when the learner waits for it.
  monkeypatch.setattr(pool, "_PATIENCE", 0.01)
  ThreadActor.slow[0] = threading.Event()
  learner = Learner(max_policy_age=3 * STRIDE)
  oldest = 0
  for step in range(0, 60 * STRIDE, STRIDE):
    for rows in learner.collect(until(2 * step), step):
      ages = step - rows.action[rows.flag != END, 0]
      assert ages.max() <= 3 * STRIDE
      assert int(learner.pool.policy_age) == ages.max()
      oldest = max(oldest, ages.max())
  assert oldest == 3 * STRIDE  # The learner waited for it.


def test_a_maximum_age_below_the_steps_of_a_call_is_refused():
  learner = Learner(max_policy_age=STRIDE - 1)
  learner.collect(until(0), 100)
  with pytest.raises(UsageError, match=r"max_policy_age = 9: .*steps_per_call = 10"):
    learner.collect(until(10), 110)


def test_a_dead_actor_is_replaced_and_its_episodes_end_with_their_last_observations():
  learner = Learner(max_policy_age=3 * STRIDE)
  for step in range(0, 5 * STRIDE, STRIDE):
    learner.collect(until(10 * step), step)
  first = ThreadActor.made[0]
  first.alive = False
  most = max(len(learner.stream(n)) for n in range(4))
  learner.collect_until_streams_have(most + 100, step=5 * STRIDE)
  assert len(ThreadActor.made) == 3
  assert int(learner.pool.deaths) == 1
  assert any("actor 0 died (old age)" in line for line in learner.warnings)
  for number in (0, 1):
    stream = learner.stream(number)
    old, new = moments(stream)
    assert old == list(range(len(old)))
    assert stream[len(old) - 1] == (first.seed % 2**16, len(old) - 1, END)
    assert new == list(range(len(new))) and len(new) > 50
  for number in (2, 3):
    assert len(moments(learner.stream(number))) == 1


@pytest.mark.parametrize("steps_per_order", [EPISODE, EPISODE - 2])
def test_an_episode_ends_once(steps_per_order):
  ThreadActor.dies_after.update({0: 1, 1: 0})
  learner = Learner(number=1, processes=1, steps_per_order=steps_per_order)
  for step in (0, 10, 20, 30):
    learner.collect(steps_per_order if step < 20 else 50, step)
    learner.wait_for_actors()
  assert len(ThreadActor.made) == 3
  (first, second) = moments(learner.stream(0))
  assert first == list(range(len(first))) and len(first) == steps_per_order + 1
  assert second == list(range(len(second)))
  flags = [flag for *_, flag in learner.stream(0)]
  assert (END, END) not in set(itertools.pairwise(flags))


def test_an_actor_that_always_dies_ends_the_run():
  ThreadActor.dies_after.update(dict.fromkeys(range(100), 0))
  learner = Learner(number=2)
  with pytest.raises(RunFailed, match=r"actor \d died 5 times .*old age"):
    learner.collect(until(0), 0)


def test_deaths_with_answers_in_between_do_not_end_the_run():
  learner = Learner(number=1, processes=1)
  for step in range(0, 8 * STRIDE, STRIDE):
    learner.collect(learner.steps + 10, step)
    ThreadActor.made[-1].alive = False
  assert int(learner.pool.deaths) >= 7


def test_a_resumed_run_ends_the_open_episodes_and_begins_new_ones():
  learner, other = Learner(), Learner()
  learner.collect_until_streams_have(1)
  for name, variable in learner.pool.kept.fields.items():
    other.pool.kept.fields[name].assign(variable)
  seeds = {actor.seed for actor in ThreadActor.made}
  steps = learner.steps
  other.collect_until_streams_have(2, step=STRIDE)
  assert other.steps > steps
  is_open = learner.pool.kept.fields["is_open"].numpy()
  assert is_open.any()
  for number in range(4):
    seed, moment, flag = learner.stream(number)[-1]
    assert (flag == CONTINUES) == is_open[number]
    first = other.stream(number)[0]
    assert first == (seed, moment + 1, END) if is_open[number] else first[:2] != (seed, moment + 1)
  assert len({actor.seed for actor in ThreadActor.made} - seeds) == 2


def test_a_rollback_discards_what_was_collected_since():
  learner = Learner()
  learner.collect_until_streams_have(1)
  saved = {name: variable.numpy() for name, variable in learner.pool.kept.fields.items()}
  old = list(ThreadActor.made)
  learner.collect(500, 10 * STRIDE)
  for name, variable in learner.pool.kept.fields.items():
    variable.assign(saved[name])
  learner.rows.clear()
  learner.collect(100, 0)
  assert 100 <= learner.steps <= max(100, saved["environment_steps"]) + 20
  learner.collect_until_streams_have(2, step=STRIDE)
  assert all(actor.closed for actor in old) and len(ThreadActor.made) == 4
  assert saved["is_open"].any()
  assert [learner.stream(n)[0][-1] == END for n in range(4)] == saved["is_open"].tolist()


def test_exploration_is_divided_and_warnings_name_the_actor():
  learner = Learner(exploration=Exploration(1000, scale=0.5, alpha=3.0))
  learner.collect_until_streams_have(1)
  found = [actor.exploration for actor in ThreadActor.made]
  assert [each.random_steps for each in found] == [500, 500]
  # Over all four environments, as if they had one actor.
  np.testing.assert_allclose(np.concatenate([each.scales(2) for each in found]),
                             [0.5, 0.25, 0.125, 0.0625])
  assert {"actor 0: the wind blows", "actor 1: the wind blows"} <= set(learner.warnings)


@pytest.mark.parametrize("settings, message", [
    ({"processes": 3}, "make_actor.processes = 3: Environments.number = 4 cannot be divided"),
    ({"processes": -1}, "make_actor.processes = -1"),
    ({"where": "moon"}, "ActorPool.where = 'moon': must be 'local' or 'ray'"),
    ({"steps_per_order": 0}, "steps_per_order = 0"),
])
def test_settings_that_cannot_work_are_refused(settings, message):
  with pytest.raises(UsageError, match=message):
    Learner(**settings)


def test_several_learner_processes_are_refused(monkeypatch):
  monkeypatch.setattr(context.run, "num_input_pipelines", 2)
  with pytest.raises(UsageError, match=r"processes = 2: .* several; use 0"):
    Learner()


def test_a_long_wait_is_reported(monkeypatch):
  monkeypatch.setattr(pool, "_PATIENCE", 0.01)
  ThreadActor.slow.update({0: threading.Event(), 1: threading.Event()})
  learner = Learner()
  learner.collect(until(0), 0)
  assert "ActorPool: 2 of 2 actors sent nothing for 0 s; still waiting" in learner.warnings
