"""`replicator play`: returns and a film from the files of an agent's run, by command."""

import types

import numpy as np
import pytest

pytest.importorskip("pygame")

from experiments import play
from models.rl.acting.evaluation import EpisodeEvaluator
from models.rl.environments import rendering
from replicator.app import load
from tests.experiments.test_sample import STEP, saved

import imageio_ffmpeg
from imageio import v3 as imageio


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return saved("d4pg", tmp_path_factory.mktemp("runs") / "d4pg")


def test_returns_are_those_of_an_evaluation_and_the_film_shows_the_first_episode(
    run, tmp_path, capsys, monkeypatch):
  loaded = load.load_run(run)
  agent = loaded[0].module
  monkeypatch.setattr(load, "load_run", lambda *given: loaded)
  expected = EpisodeEvaluator(lambda: agent.actor.environments, 3, picture=False)(agent).scalars
  film = tmp_path / "film.gif"
  assert play.main([f"--run={run}", "--episodes=3", f"--video={film}"]) == 0
  *episodes, summary, _ = capsys.readouterr().out.splitlines()[-5:]
  assert [line.startswith(f"episode {i}: return ") for i, line in enumerate(episodes)] == [True] * 3
  assert all(line.endswith(" in 6 steps") for line in episodes)
  assert f"Pendulum-v1, {run}, step {STEP}: return {expected['return']:.6g} +-" in summary
  pictures = imageio.imread(film)
  assert pictures.shape == (7, 240, 240, 3) and (pictures[0] != pictures[-1]).any()
  assert imageio.immeta(film)["duration"] == 30  # Of 33.3 ms, since a GIF counts hundredths.


def test_a_film_shows_at_most_50_frames_a_second(monkeypatch, tmp_path):
  environments = types.SimpleNamespace(name="Fast-v0", settings=None, steps_per_second=100.0)
  episodes = types.SimpleNamespace(steps=[types.SimpleNamespace(actions=[np.zeros([1])] * 10)])
  asked = []
  monkeypatch.setattr(rendering, "frames", lambda settings, seed, actions, steps, height: (
      asked.extend(steps) or [np.full([240, 321, 3], 20 * step, np.uint8) for step in steps], ""))
  film = tmp_path / "film.mp4"
  play._write_film(film, environments, episodes)
  assert asked == [0, 2, 4, 6, 8, 10]
  assert imageio_ffmpeg.count_frames_and_secs(film) == (6, pytest.approx(6 / 50))


@pytest.mark.parametrize("flag, error", [
    ("--episodes=0", "--episodes=0: must be at least 1"),
    ("--video=film.avi", "--video=film.avi: must be a .mp4 or .gif file")])
def test_bad_flags_are_one_line(flag, error, capsys):
  assert play.main(["--run=none", flag]) == 2
  assert capsys.readouterr().err == f"error: {error}\n"


def test_a_run_without_an_agent_is_one_line(run, capsys, monkeypatch):
  class GAN: ...
  training = types.SimpleNamespace(module=GAN())
  monkeypatch.setattr(load, "load_run", lambda *given: (training, 2))
  assert play.main([f"--run={run}"]) == 2
  assert capsys.readouterr().err == (f"error: --run={run}: its GAN is not an agent, so it has "
                                     "no environments to play in\n")
