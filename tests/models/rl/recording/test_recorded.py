"""Data sets of episodes: what is written is read again, and fills a replay as an actor does."""

import pathlib
from typing import Any

from models.rl.acting.reward_normalizer import RewardNormalizer
from models.rl.environments.environments import Environments
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.recording import conversion, dataset, recorded
from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED
from tests.programs.refusals import refusal

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

SPACES = {
    "nested": (spaces.Dict({"place": spaces.Box(-9, 9, [2, 2], np.float64),
                            "room": spaces.Discrete(3, start=1),
                            "keys": spaces.Tuple([spaces.MultiBinary(2)])}),
               spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))),
    "image": (spaces.Box(0, 255, [4, 5, 3], np.uint8), spaces.Discrete(4, start=2)),
    "gray": (spaces.Dict({"screen": spaces.Box(0, 255, [16, 18], np.int64)}), spaces.Discrete(2)),
    "channels first": (spaces.Box(0, 1, [3, 16, 18]), spaces.Discrete(2)),
    "choices": (spaces.Box(-1, 1, [3]), spaces.MultiDiscrete([2, 3]))}


class Own(gymnasium.Env):
  """Observes anything at random; an episode of seed s terminates if s is even, after 3 steps."""

  def __init__(self, kind: str):
    self.observation_space, self.action_space = SPACES[kind]

  def reset(self, seed=None, options=None):
    self.observation_space.seed(seed)
    self._seed, self._step = seed, 0
    return self.observation_space.sample(), {}

  def step(self, action):
    self._step += 1
    return (self.observation_space.sample(), float(self._step) / 3,
            self._step == 3 and self._seed % 2 == 0, self._step == 3, {})


@pytest.fixture
def own():
  """Makes environments of `Own`."""
  def make(kind: str, stack: int = 1, **settings: Any) -> Environments:
    gymnasium.register("Own-v0", lambda: Own(kind))
    return Environments("Own-v0", stack=stack, **settings)
  yield make
  gymnasium.registry.pop("Own-v0", None)


def play(environments: Environments, seed: int) -> tuple:
  """An episode of random actions: what the agent saw and did."""
  draw = np.random.default_rng(seed)
  seen, taken, rewards = [environments.reset({0: seed})[0][0]], [], []
  while True:
    action = draw.uniform(-1, 1, [1, environments.action_size]).astype(np.float32)
    outcome = environments.step(action)
    seen.append(outcome.observation[0])
    taken.append(action[0])
    rewards.append(outcome.reward[0])
    if outcome.terminated[0] or outcome.truncated[0]:
      return np.stack(seen), np.stack(taken), np.array(rewards), bool(outcome.terminated[0])


def written(environments: Environments, folder: pathlib.Path, number: int = 3) -> list[tuple]:
  played = [play(environments, seed) for seed in range(number)]
  dataset.write(folder, [conversion.episode_of(environments, *each) for each in played],
                *environments.spaces, environments.settings.spec)
  return played


@pytest.mark.parametrize("kind", list(SPACES))
@pytest.mark.parametrize("stack", [1, 2])
def test_what_an_agent_saw_and_did_is_read_again(own, tmp_path, kind, stack):
  environments = own(kind, stack)
  played = written(environments, tmp_path / "own-v0")
  read = list(dataset.read(str(tmp_path / "own-v0")))
  assert [episode.terminated for episode in read] == [True, False, True]
  for episode, (seen, taken, rewards, terminated) in zip(read, played, strict=True):
    found = conversion.timesteps_of(environments, episode, 4, "x")
    assert found.observation.dtype == environments.observation_dtype
    np.testing.assert_allclose(found.observation, seen, rtol=1e-6)
    if environments.discrete:
      parts = np.split(taken, np.cumsum(environments.choices)[:-1], 1)
      taken = np.concatenate([np.eye(part.shape[1])[part.argmax(1)] for part in parts], 1)
    np.testing.assert_allclose(found.action[:-1], taken, atol=1e-6)
    np.testing.assert_allclose(found.reward, [*rewards, 0], rtol=1e-6)
    last = TERMINATED if terminated else CONTINUES
    assert found.flag.tolist() == [CONTINUES, CONTINUES, last, END]
    assert (found.stream == 4).all()


def test_numbers_in_float64_are_recorded_whole(own, tmp_path):
  environments = own("nested", observation_dtype="float64")
  (seen, *_), = written(environments, tmp_path / "own-v0", 1)
  (episode,) = dataset.read(str(tmp_path / "own-v0"))
  found = conversion.timesteps_of(environments, episode, 0, "x").observation
  assert found.dtype == np.float64
  np.testing.assert_array_equal(found, seen)


def test_files_have_the_names_and_values_of_minari(own, tmp_path):
  environments = own("nested")
  written(environments, tmp_path / "own-v0")
  first = next(dataset.read(str(tmp_path / "own-v0")))
  assert first.actions.shape == (3, 2) and (first.actions[:, 1] >= 0).all()
  assert first.observations["place"].shape == (4, 2, 2)
  assert set(first.observations["room"]) <= {1, 2, 3}
  assert first.observations["keys"][0].shape == (4, 2)
  assert environments.spaces[0].contains({
      "place": first.observations["place"][0], "room": first.observations["room"][0],
      "keys": (first.observations["keys"][0][0].astype(np.int8),)})


def test_minari_reads_what_was_written(own, tmp_path, monkeypatch):
  minari = pytest.importorskip("minari")
  monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
  environments = own("nested")
  played = written(environments, tmp_path / "own" / "random-v0")
  found = minari.load_dataset("own/random-v0")
  assert (found.total_episodes, found.total_steps) == (3, 9)
  for episode, (_, _, rewards, terminated) in zip(found, played, strict=True):
    np.testing.assert_allclose(episode.rewards, rewards)
    assert episode.terminations[-1] == terminated


def test_recorded_episodes_fill_a_replay_and_a_normalizer(own, tmp_path):
  environments = own("nested")
  played = written(environments, tmp_path / "a-v0") + written(environments, tmp_path / "b-v0", 2)
  size = environments.observation_shape[0]
  make = lambda capacity: Replay((size,), 2, 1, capacity=capacity, n_step=1)
  replay, normalizer = make(20), Normalizer((size,))
  folders = [str(tmp_path / name) for name in ("a-v0", "b-v0")]
  recorded.insert(folders, environments, replay, normalizer)
  assert replay.size() == 15
  seen = np.concatenate([each[0] for each in played])
  np.testing.assert_allclose(normalizer.mean.numpy(), seen.mean(0), rtol=1e-4)
  assert refusal(recorded.insert, folders, environments, make(19)) == (
      "Replay.capacity: the recorded episodes have 20 timesteps, but there is room for 19; use "
      "20")


def test_recorded_rewards_are_normalized_as_those_of_an_actor(own, tmp_path):
  environments = own("nested")
  written(environments, tmp_path / "own-v0")
  replay = Replay(environments.observation_shape, 2, 1, capacity=20, n_step=1)
  recorded.insert(str(tmp_path / "own-v0"), environments, replay,
                  rewards=RewardNormalizer(1, discount=0.5))
  rewards, returns = np.array([1, 2, 3]) / 3, np.array([1, 2.5, 4.25]) / 3
  np.testing.assert_allclose(replay.reward[:3], rewards / returns.std(), rtol=1e-6)


def test_data_sets_that_do_not_fit_are_refused(own, tmp_path):
  written(own("choices"), tmp_path / "own-v0")
  gymnasium.registry.pop("Own-v0")
  episode = next(dataset.read(str(tmp_path / "own-v0")))
  for kind in ("nested", "image"):
    said = refusal(conversion.timesteps_of, own(kind), episode, 0, "own-v0")
    assert said.startswith("'own-v0': ") and "Own-v0" in said
    gymnasium.registry.pop("Own-v0")
  assert "is not a data set of episodes, which has a file data/main_data.hdf5" in refusal(
      lambda: next(dataset.read(str(tmp_path))))
