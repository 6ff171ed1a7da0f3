"""Returns beside published ones: which evaluations count, and the statistics of the seeds."""

import json

from benchmarks import agent_evidence

import numpy as np
import pytest
from absl.testing import flagsaver


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
  """A function: the lines printed for runs with `(task, [(environment steps, return)])`."""
  agent_evidence.FLAGS.mark_as_parsed()
  monkeypatch.chdir(tmp_path)

  def of(*runs, steps=100_000):
    for i, (task, evaluations) in enumerate(runs):
      folder = tmp_path / "sweep" / "trials" / str(i)
      folder.mkdir(parents=True)
      (folder / "config.gin").write_text(f"Environments.name = 'dm_control/{task}-v0'\n")
      (folder / "metrics.jsonl").write_text("".join(
          json.dumps({"step": at // 8, "eval/environment_steps": at, "eval/return": value}) + "\n"
          for at, value in evaluations))
    with flagsaver.flagsaver(at=steps):
      agent_evidence.main(["", "d4pg=sweep"])
    return capsys.readouterr().out.splitlines()
  return of


def test_a_return_is_the_mean_of_the_evaluations_around_the_steps(printed):
  lines = printed(("cheetah-run", [(80_000, 1.0), (96_000, 200.0), (104_000, 300.0), (112_000, 9)]),
                  ("cheetah-run", [(100_000, 350.0)]), ("ball_in_cup-catch", [(100_000, 40.0)]))
  rows = {line[:34].strip(): line[34:].split() for line in lines}
  # Published: cup 782, cheetah 131, of 10 seeds each (mean over published_returns.json).
  cup, cheetah = rows["ball in cup catch"], rows["cheetah run"]
  assert cup[:4] == ["40", "40", "(1)", "782"] and cup[-2:] == ["(10)", "below"]
  assert cheetah[:7] == ["250,", "350", "300", "[250,", "350]", "(2)", "131"]
  assert cheetah[-2:] == ["(10)", "above"]
  # Over the runs of both tasks: the middle of 40, 250 and 350, none of which is cut at 3 runs.
  assert rows["interquartile mean"][0] == "213"
  assert any("an update every 8.0 steps of the simulator" in line for line in lines)


def test_statistics_are_those_of_agarwal_et_al():
  runs = np.array([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 1000.0])
  assert agent_evidence.iqm(runs) == 35.0  # The mean of 20, 30, 40, 50.
  np.testing.assert_array_equal(
      agent_evidence.profile(runs, np.array([-1.0, 20.0, 999.0, 1000.0])), [1, 5 / 8, 1 / 8, 0])
  # Tasks are resampled by themselves: seeds that are alike within tasks leave no doubt.
  alike = {"a": np.full(5, 100.0), "b": np.full(3, 900.0)}
  np.testing.assert_array_equal(agent_evidence.interval(alike, agent_evidence.mean), [400.0, 400.0])
  assert agent_evidence.place(np.array([100.0]), np.array([90.0, 120.0])) == "within"


@pytest.mark.parametrize("steps, message", [
    (100_000, "'sweep': no trial on the DM Control Suite was evaluated at about 100,000 steps"),
    (5, "d4pg at 5 steps: published returns are those of d4pg and sac at 100,000 and 250,000"),
])
def test_missing_returns_are_one_line(printed, steps, message):
  with pytest.raises(SystemExit, match=message):
    printed(("cheetah-run", [(50_000, 1.0)]), steps=steps)
