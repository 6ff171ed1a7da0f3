"""The actor of the training process: its timesteps, exact resume, environments that fail."""

import os
import signal

from models.rl.acting import environment_loop
from models.rl.acting.action_noise import Exploration, PinkNoise
from models.rl.acting.actor import Actor
from models.rl.agents import make_actor
from models.rl.environments.environments import Environments
from models.rl.replay.replay import Replay
from models.rl.replay.rollouts import Rollouts
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps
from replicator import Replicator
from replicator.doctor.resume_recording import python_state
from replicator.errors import RunFailed
from replicator.processes import GivenUp
from replicator.step import context
from replicator.step.replicated import copies_of
from replicator.step.variables import variables_of
from replicator.training.checkpoints import partial
from replicator.training.checkpoints.saver import Saver

import numpy as np
import pytest
import tensorflow as tf


class Recorder:
  """Stands in for a replay and for a normalizer, and keeps what it receives."""

  def __init__(self):
    self.rows: list[Timesteps] = []
    self.seen: list[np.ndarray] = []

  def insert(self, rows: Timesteps) -> None:
    self.rows.append(rows)

  def update(self, observations: np.ndarray) -> list[str]:
    self.seen.append(observations)
    return []

  def all(self) -> Timesteps:
    return Timesteps(*(np.concatenate(parts) for parts in zip(*self.rows, strict=True)))

  def stream(self, number: int) -> Timesteps:
    rows = self.all()
    return Timesteps(*(part[rows.stream == number] for part in rows))


def policy(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
  return np.tanh(observations[:, :noise.shape[1]] + noise)


def counting(observations: np.ndarray, noise: np.ndarray, memory: np.ndarray) -> tuple:
  """A policy that counts the steps of an episode, and acts by the count."""
  memory = memory + 1
  return np.tanh(0.1 * memory + noise), memory


def actor_in(name: str, number: int = 1, warn=None, random_steps: int = 0, noise=None,
             memory_size: int = 0, **settings) -> tuple[Actor, Recorder]:
  recorder = Recorder()
  def unexpected(line):
    raise AssertionError(line)
  return Actor(Environments(name, number, **settings), recorder, recorder,
               seed=3, exploration=Exploration(random_steps, noise),
               warn=warn or unexpected, memory_size=memory_size), recorder


def restore(actor: Actor, values: list[np.ndarray]) -> None:
  for variable, value in zip(actor.variables, values, strict=True):
    variable.assign(value)


def assert_equal(found: Timesteps, expected: Timesteps) -> None:
  for name, part in found._asdict().items():
    assert part.dtype == getattr(expected, name).dtype
    assert part.tobytes() == getattr(expected, name).tobytes(), name


def test_timesteps_record_what_happened_in_the_order_of_time(scripted):
  scripted(length=3)
  actor, recorder = actor_in("Scripted-v0")
  actor.collect(lambda observations, noise: np.full_like(noise, 0.5), 5)
  rows = recorder.all()
  np.testing.assert_array_equal(rows.observation[:, 1:], [
      [0, 0], [1, 2], [2, 2], [3, 2], [0, 0], [1, 2]])
  assert rows.flag.tolist() == [CONTINUES, CONTINUES, TERMINATED, END, CONTINUES, CONTINUES]
  assert rows.action[:, 0].tolist() == [0.5, 0.5, 0.5, 0, 0.5, 0.5]
  assert rows.reward.tolist() == [2, 2, 2, 0, 2, 2]
  assert (rows.stream.dtype, rows.flag.dtype) == (np.int32, np.uint8)
  assert rows.reward.dtype == rows.action.dtype == np.float32
  assert recorder.seen[0].tobytes() == rows.observation.tobytes()
  assert rows.observation[0, 0] != rows.observation[4, 0]  # The seeds differ.


def test_a_truncated_episode_did_not_terminate(scripted):
  scripted(length=3)
  actor, recorder = actor_in("Scripted-v0", max_episode_steps=2)
  actor.collect(policy, 3)
  assert recorder.all().flag.tolist() == [CONTINUES, CONTINUES, END, CONTINUES]


def test_every_environment_is_a_stream_with_its_own_seeds_and_noise(scripted):
  scripted()
  actor, recorder = actor_in("Scripted-v0", 3)
  actor.collect(policy, 30)
  assert len(recorder.rows) == 1
  for part in (recorder.all().observation[:3, 0], recorder.all().action[:3, 0]):
    assert len(set(part.tolist())) == 3


def test_streams_that_are_closed_end_with_the_present_observation_and_go_on(scripted):
  scripted(length=3)
  recorder = Recorder()
  actor = Actor(Environments("Scripted-v0", 2), recorder, exploration=Exploration(0),
                closes=True)
  for until in (4, 4, 6, 8):  # Nothing is done in the second call.
    actor.collect(policy, until)
  assert len(recorder.rows) == 3
  rows = recorder.stream(1)
  assert rows.flag.tolist() == [
      CONTINUES, CONTINUES, END, TERMINATED, END, CONTINUES, END]
  assert rows.observation[:, 1].tolist() == [0, 1, 2, 2, 3, 0, 1]
  assert rows.observation[2].tobytes() == rows.observation[3].tobytes()


def test_a_rollout_ends_with_the_present_observation_of_each_stream(scripted, monkeypatch):
  scripted(length=30)
  monkeypatch.setattr(context.run, "global_batch_size", 4)
  environments, seen = Environments("Scripted-v0", 2), []

  def evaluate(observations, actions):
    seen.extend(observations[:, 1])
    return observations, np.zeros(len(actions)), np.zeros(len(actions))

  rollouts = Rollouts(environments.observation_shape, environments.action_size, 2, evaluate, 0,
                      length=4)
  make_actor(environments, rollouts, None).collect(policy, 8)
  assert sorted(seen) == [step for step in range(5) for _ in range(2)]


def test_only_finished_episodes_are_counted(scripted):
  scripted(length=4)
  actor, _ = actor_in("Scripted-v0", 2)
  actor.collect(lambda observations, noise: np.zeros_like(noise), 6)
  assert (int(actor.environment_steps), int(actor.episodes)) == (6, 0)
  assert float(actor.scalars()["episode_return"]) == 0
  actor.collect(lambda observations, noise: np.full_like(noise, 0.5), 16)
  assert (int(actor.environment_steps), int(actor.episodes)) == (16, 4)
  assert float(actor.scalars()["episode_return"]) == np.mean([3 + 2, 3 + 2, 8, 8])
  actor.collect(lambda observations, noise: np.zeros_like(noise), 16 + 80)
  assert float(actor.scalars()["episode_return"]) == 4  # The mean of the last ten.


def test_acting_begins_with_random_actions_and_stops_when_it_is_enough(scripted):
  scripted()
  noises: list = []
  actor, recorder = actor_in("Scripted-v0", 2, random_steps=2001)
  actor.collect(lambda seen, noise: noises.append(noise) or policy(seen, noise), 2006)
  assert len(noises) == 2 and int(actor.environment_steps) == 2006
  assert noises[0].dtype == np.float32 and len(np.unique(noises)) == 4
  rows = recorder.all()
  uniform = rows.action[rows.flag != END][:2002]
  assert np.abs(uniform).max() <= 1 and len(np.unique(uniform)) > 1990
  assert abs(uniform.mean()) < 0.1 and abs(uniform.std() - 3 ** -0.5) < 0.05
  actor.collect(policy, 2006)
  assert len(recorder.rows) == 1


def test_one_call_collects_the_same_as_several(scripted):
  scripted()
  whole, pieces = (actor_in("Scripted-v0", 3, random_steps=50) for _ in range(2))
  whole[0].collect(policy, 300)
  for until in (3, 4, 60, 200, 300):
    pieces[0].collect(policy, until)
  assert_equal(whole[1].all(), pieces[1].all())


@pytest.mark.parametrize("name, vectorization, act", [
    ("Pendulum-v1", "sync", policy), ("dm_control/cartpole-swingup-v0", "sync", policy),
    ("Scripted-v0", "sync", counting),
    pytest.param("Pendulum-v1", "async", policy, marks=pytest.mark.slow),
    pytest.param("dm_control/cartpole-swingup-v0", "async", policy, marks=pytest.mark.slow)])
def test_a_restored_actor_continues_bit_for_bit(name, vectorization, act, scripted):
  scripted(length=8)
  if name.startswith("dm_control"):
    pytest.importorskip("dm_control")
  settings = {"number": 2, "random_steps": 60, "vectorization": vectorization,
              "max_episode_steps": 70, "noise": PinkNoise(), "memory_size": int(act is counting)}
  unbroken, all_rows = actor_in(name, **settings)
  unbroken.collect(act, 170)
  saved, rows_before = [v.numpy() for v in unbroken.variables], len(all_rows.all().stream)
  unbroken.collect(act, 300)
  restored, rows = actor_in(name, **settings)
  restore(restored, saved)
  restored.collect(act, 300)
  assert_equal(rows.all(), Timesteps(*(part[rows_before:] for part in all_rows.all())))
  for found, expected in zip(restored.variables, unbroken.variables, strict=True):
    assert found.numpy().tobytes() == expected.numpy().tobytes(), found.name
  for actor in (unbroken, restored):
    actor.environments.close()


def test_episodes_take_as_much_memory_as_they_are_long(scripted, monkeypatch):
  monkeypatch.setattr(environment_loop, "_FIRST_LENGTH", 3)
  scripted(length=14)
  settings = {"number": 2, "max_episode_steps": 10**7, "noise": PinkNoise()}
  unbroken, all_rows = actor_in("Scripted-v0", **settings)
  unbroken.collect(policy, 10)
  saved, rows_before = [v.numpy() for v in unbroken.variables], len(all_rows.all().stream)
  assert unbroken.kept.fields["actions"].numpy().shape == (2, 6, 1)
  for until in (11, 40, 61):
    unbroken.collect(policy, until)
  assert unbroken.kept.fields["actions"].numpy().shape == (2, 24, 1)
  restored, rows = actor_in("Scripted-v0", **settings)
  restore(restored, saved)
  restored.collect(policy, 61)
  assert_equal(rows.all(), Timesteps(*(part[rows_before:] for part in all_rows.all())))
  for found, expected in zip(restored.variables, unbroken.variables, strict=True):
    assert found.numpy().tobytes() == expected.numpy().tobytes(), found.name


@pytest.mark.parametrize("changed", ["capacity", "max_episode_steps", "memory_size"])
def test_a_replay_is_restored_whole_or_not_at_all(changed, scripted, tmp_path, monkeypatch):
  scripted(length=7)

  class Step(tf.Module):
    def __init__(self, **settings):
      environments = Environments("Scripted-v0", 2,
                                  max_episode_steps=settings.get("max_episode_steps"))
      self.replay = Replay((3,), 1, 2, capacity=settings.get("capacity", 60), n_step=1)
      self.actor = Actor(environments, self.replay, exploration=Exploration(0),
                         memory_size=settings.get("memory_size", 0))

    def collect(self, until):
      act = policy if "memory" not in self.actor.kept.fields else counting
      self.actor.collect(act, until)

  step = Step()
  step.collect(40)
  saver = Saver(tmp_path, step)
  saver.save(1, {})
  saver.wait()
  other = Step(**{changed: {"capacity": 30, "max_episode_steps": 20, "memory_size": 1}[changed]})
  monkeypatch.setattr(partial, "_allowed", True)
  Saver(tmp_path, other).restore()
  kept = changed == "max_episode_steps"
  assert other.replay.size() == (step.replay.size() if kept else 0)
  assert other.replay.written.numpy().tolist() == (step.replay.written.numpy().tolist() if kept
                                                   else [0, 0])
  assert other.actor.environment_steps.numpy() == 40
  for each in (step, other):
    each.collect(60)
  assert other.replay.size() == (step.replay.size() if kept else 18)
  drawn = other.replay.sample(200)
  steps, later = drawn.observation.numpy()[:, 1], drawn.next_observation.numpy()[:, 1]
  np.testing.assert_array_equal(later, steps + 1)


@pytest.mark.parametrize("back, until", [(20, 60), (4, 8)])
def test_a_rollback_is_noticed(scripted, back, until):
  scripted()
  actor, recorder = actor_in("Scripted-v0", 2)
  actor.collect(policy, back)
  saved = [v.numpy() for v in actor.variables]
  actor.collect(policy, until)
  restore(actor, saved)
  actor.collect(policy, until)
  assert_equal(recorder.rows[2], recorder.rows[1])


def test_an_environment_that_does_not_repeat_itself_is_reported_and_its_episode_ends(scripted):
  scripted(drifts=True)
  warnings: list[str] = []
  actor, recorder = actor_in("Scripted-v0", 2, warnings.append)
  actor.collect(policy, 10)
  actor._state = None  # As in a new process.
  last = recorder.all().observation[-2:, 0]
  actor.collect(policy, 12)
  assert len(warnings) == 2 and "Scripted-v0: environment 1 is not deterministic" in warnings[1]
  rows = recorder.rows[1]
  assert rows.flag.tolist() == [END, END, CONTINUES, CONTINUES]
  np.testing.assert_array_equal(rows.observation[:2, 0], last)
  np.testing.assert_array_equal(rows.observation[:, 1], [5, 5, 0, 0])


def test_an_episode_whose_replay_has_another_return_ends_too(scripted):
  scripted()
  warnings: list[str] = []
  actor, recorder = actor_in("Scripted-v0", 2, warnings.append)
  actor.collect(policy, 10)
  actor.kept.fields["episode_return"].assign_add([0.0, 1e-9])
  actor.collect(policy, 12)
  assert len(warnings) == 1 and "environment 1 is not deterministic" in warnings[0]
  assert recorder.rows[1].flag.tolist() == [END, CONTINUES, CONTINUES]


@pytest.mark.parametrize("failure", [(np.nan, 0.0), ValueError("boom")], ids=str)
def test_a_failure_ends_one_episode_and_the_run_continues(scripted, failure):
  scripted(failures={(2, 3): failure})
  warnings: list[str] = []
  actor, recorder = actor_in("Scripted-v0", 3, warnings.append)
  actor.collect(policy, 15)
  [line] = warnings
  assert line.startswith("Scripted-v0: environment 1, episode 0, step 3: ")
  assert "\n" not in line and "a new one begins" in line
  rows = recorder.stream(1)
  assert rows.flag.tolist() == [CONTINUES, CONTINUES, END, CONTINUES, CONTINUES]
  assert rows.observation[:, 1].tolist() == [0, 1, 2, 0, 1]  # END has the last good observation.
  assert rows.observation[2, 0] == rows.observation[0, 0] != rows.observation[3, 0]
  assert recorder.stream(0).flag.tolist() == [CONTINUES] * 5
  assert np.isfinite(recorder.all().observation).all() and int(actor.episodes) == 0


def test_a_run_with_a_failed_episode_resumes_like_any_other(scripted):
  scripted(failures={(2, 3): (np.nan, 0.0)})
  actor, recorder = actor_in("Scripted-v0", 3, print)
  actor.collect(policy, 15)
  saved = [v.numpy() for v in actor.variables]
  actor.collect(policy, 60)
  other, rows = actor_in("Scripted-v0", 3)
  restore(other, saved)
  other.collect(policy, 60)
  assert_equal(rows.all(), recorder.rows[1])


@pytest.mark.parametrize("step, warnings", [(0, 10), (1, 19)], ids=["reset", "step"])
def test_an_environment_that_always_fails_ends_the_run_with_one_line(step, warnings, scripted):
  scripted(failures={step: ValueError("boom")})
  lines: list[str] = []
  actor, _ = actor_in("Scripted-v0", 1 + step, lines.append)
  with pytest.raises(RunFailed, match=r"environment 0 failed 10 times .* ValueError: boom"):
    actor.collect(policy, 1000)
  assert len(lines) == warnings


def test_failures_with_good_steps_between_do_not_end_the_run(scripted):
  scripted(failures={2: ValueError("boom")})
  warnings: list[str] = []
  actor, _ = actor_in("Scripted-v0", 1, warnings.append)
  actor.collect(policy, 40)
  assert len(warnings) == 20


def test_actions_that_are_not_finite_end_the_run(scripted):
  scripted()
  actor, recorder = actor_in("Scripted-v0", 2)
  actor.collect(policy, 4)
  with pytest.raises(RunFailed, match="actions are not finite at environment step 6"):
    actor.collect(lambda observations, noise: noise * (np.nan if observations[0, 1] == 3 else 0), 9)
  assert len(recorder.rows) == 1
  actor.collect(policy, 6)  # From the variables, which the failed call did not change.
  assert recorder.rows[1].observation[:, 1].tolist() == [2, 2]


def test_what_an_actor_makes_again_is_no_state_that_could_be_lost(scripted):
  scripted()
  actor, _ = actor_in("Scripted-v0", 2)
  actor.collect(policy, 6)
  found = python_state("actor", actor)
  assert "actor.environments.0.env.env._step" in found
  assert not [path for path in found if path.startswith(("actor._", "actor.environments._"))]
  assert sum(v is actor.environment_steps for v in variables_of(actor).values()) == 1


def test_a_process_that_gives_up_acts_no_further_and_resumes_where_it_was(scripted, monkeypatch):
  scripted()
  actor, recorder = actor_in("Scripted-v0", 2)
  actor.collect(policy, 4)
  seen: list = []
  monkeypatch.setattr("models.rl.acting.actor.gives_up", lambda: len(seen) > 3)
  with pytest.raises(GivenUp, match="Scripted-v0: the actor is still acting"):
    actor.collect(lambda *given: seen.append(given) or policy(*given), 100)
  assert len(recorder.rows) == 1 and actor.environment_steps.numpy() == 4
  seen.clear()
  actor.collect(policy, 10)
  unbroken, rows = actor_in("Scripted-v0", 2)
  unbroken.collect(policy, 10)
  assert_equal(recorder.all(), rows.all())


def test_all_replicas_have_what_a_restart_needs(scripted):
  scripted()
  with Replicator("mirrored", logical_cpus=2).scope():
    actor, _ = actor_in("Scripted-v0", 2)
  actor.collect(policy, 30)
  for variable in actor.variables:
    first, second = copies_of(variable)
    assert first.numpy().tobytes() == second.numpy().tobytes()
  assert actor.environment_steps.numpy() == 30


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced_and_nothing_is_lost():
  quiet, rows = actor_in("Pendulum-v1", 2, max_episode_steps=30)
  quiet.collect(policy, 200)
  warnings: list[str] = []
  actor, others = actor_in("Pendulum-v1", 2, warnings.append, vectorization="async",
                           max_episode_steps=30)
  actor.collect(policy, 100)
  victim = actor.environments._vector.processes[1]
  os.kill(victim.pid, signal.SIGKILL)
  victim.join()
  actor.collect(policy, 200)
  assert_equal(others.all(), rows.all())
  assert len(warnings) == 1 and "all environments are restarted" in warnings[0]
  actor.environments.close()


# ---- Memory -------------------------------------------------------------------------------------


def test_a_policy_remembers_its_episode_and_no_other(scripted):
  scripted(length=4, failures={(2, 3): ValueError("boom")})
  counts: list[list] = []
  def act(observations, noise, memory):
    counts.append(memory[:, 0].tolist())
    return counting(observations, noise, memory)
  actor, _ = actor_in("Scripted-v0", 2, print, memory_size=1)
  actor.collect(act, 12)
  # Environment 1 fails in its third step, and the episodes of both end after four.
  assert counts == [[0, 0], [1, 1], [2, 2], [3, 0], [0, 1], [1, 2]]
  assert actor.kept.fields["memory"].numpy().tolist() == [[2], [3]]


def test_other_policies_have_no_variable_for_it(scripted):
  scripted()
  assert "memory" not in actor_in("Scripted-v0")[0].kept.fields


def test_a_replay_gives_back_the_stacks_that_the_policy_saw(scripted):
  scripted(length=5, failures={(3, 2): ValueError("broken")})
  environments = Environments("Scripted-v0", 2, stack=3)
  replay, seen = Replay((9,), 1, 2, capacity=40, n_step=1, stack=3), {}

  def numbered(observations, noise):  # Each action occurs once, and says when it was taken.
    actions = (len(seen) + 1 + np.arange(2, dtype=np.float32)[:, np.newaxis]) / 1024
    seen.update(zip(actions[:, 0].tolist(), observations, strict=True))
    return actions

  lines: list[str] = []
  actor = Actor(environments, replay, seed=3, exploration=Exploration(0), warn=lines.append)
  for until in (7, 20, 100):
    actor.collect(numbered, until)
    drawn = replay.sample(300)
    for action, observation in zip(drawn.action.numpy()[:, 0].tolist(), drawn.observation.numpy(),
                                   strict=True):
      np.testing.assert_array_equal(observation, seen[action])
  assert len(lines) == 1
  first = np.stack(list(seen.values()))
  first = first[first[:, 7] == 0]  # No step of the episode was taken yet.
  np.testing.assert_array_equal(first, np.tile(first[:, :3], 3))
