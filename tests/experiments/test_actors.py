"""D4PG with actors in processes of their own, which are killed, interrupted and resumed."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

from tests.programs.forks import in_a_fork
from tests.programs.processes import SECONDS, wait_until

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ENDLESS = 1_000_000
SETTINGS = [
    "make_actor.processes = 2", "Environments.number = 2", "train.log_every = 100",
    "train.eval_every = 0", "train.checkpoint_every = 100", "Policy.sizes = (16, 16)",
    "Critic.sizes = (16, 16)", "Replicator.jit_compile = False"]
LEARNING = [
    "train.steps = 6000", "train.eval_every = 6000", "EpisodeEvaluator.picture = False",
    "train.global_batch_size = 64", "RateLimiter.update_ratio = 1.0", "Replay.n_step = 5",
    "EpisodeEvaluator.episodes = 5", "Policy.sizes = (64, 64)", "Critic.sizes = (64, 64)"]


@contextlib.contextmanager
def started(workdir, *bindings, program=("experiments.d4pg",)):
  """Starts a run in a session of its own, as from a terminal; ends all its processes at exit."""
  command = [sys.executable, "-m", *program, "--gin_file=configs/d4pg_pendulum.gin",
             f"--workdir={workdir}",
             *(f"--gin_param={setting}" for setting in [*SETTINGS, *bindings])]
  with open(f"{workdir}.log", "ab") as log, subprocess.Popen(
      command, stdout=log, stderr=log, start_new_session=True) as process:
    try:
      yield process
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_for(process, workdir, condition):
  """Waits until the condition holds; the process must still be running then."""
  wait_until(lambda: process.poll() is not None or condition())
  assert process.poll() is None, log_of(workdir)


def log_of(workdir):
  return pathlib.Path(f"{workdir}.log").read_text()


def step(workdir):
  """The last logged step."""
  file = workdir / "metrics.jsonl"
  lines = file.read_text().splitlines() if file.exists() else []
  return json.loads(lines[-1])["step"] if lines else 0


def actors(process):
  """Process ids of the learner's actors."""
  children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
  return {int(child) for child in children if "spawn_main" in command_of(child)}


def command_of(process_number):
  try:
    return pathlib.Path(f"/proc/{process_number}/cmdline").read_text()
  except OSError:
    return ""


def are_gone(processes):
  return not any("spawn_main" in command_of(number) for number in processes)


@in_a_fork
def test_actors_are_replaced_when_killed_and_end_with_the_learner(tmp_path):
  workdir = tmp_path / "run"
  with started(workdir, f"train.steps = {ENDLESS}") as process:
    wait_for(process, workdir, lambda: step(workdir) >= 300)
    before = actors(process)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    wait_for(process, workdir, lambda: "died (killed by SIGKILL)" in log_of(workdir))
    now = step(workdir)
    wait_for(process, workdir, lambda: step(workdir) >= now + 500)
    after = actors(process)
    assert len(after) == 2 and len(after & before) == 1
    os.killpg(process.pid, signal.SIGINT)  # Like Ctrl-C, which reaches the actors, too.
    assert process.wait(SECONDS) == 42
    wait_until(lambda: are_gone(before | after))
  assert re.search(r"stopped at step \d+, checkpoint saved", log_of(workdir))
  assert len(re.findall(r"actor \d died", log_of(workdir))) == 1
  assert "Traceback" not in log_of(workdir) and "Warning" not in log_of(workdir)

  now = step(workdir)
  with started(workdir, f"train.steps = {ENDLESS}") as process:
    wait_for(process, workdir, lambda: step(workdir) >= now + 300)
    assert "resumed at step" in log_of(workdir)
    after = actors(process)
    process.kill()  # It has no time to end its actors.
    wait_until(lambda: are_gone(after))


@in_a_fork
def test_ten_kills_of_all_processes_lose_nothing_that_was_saved(tmp_path):
  workdir, draw, saved, published = tmp_path / "run", random.Random(0), {}, [0]
  for kill in range(11):
    where = draw.choice(["collect", "begun", "written"]) if kill < 10 else "never"
    number = draw.randint(2, 30) if where == "collect" else draw.randint(1, 3)
    before = len(log_of(workdir)) if kill else 0
    with started(workdir, *LEARNING, program=(
        "tests.programs.killed_acting", where, str(number))) as process:
      status = process.wait(SECONDS)
    assert status == (0 if where == "never" else -signal.SIGKILL), log_of(workdir)
    told = [json.loads(line) for line in log_of(workdir)[before:].splitlines()
            if line.startswith("{")]
    begun = told.pop(0)
    at = begun.pop("begins")
    assert at >= published[-1]  # The line of one that is published may not be printed any more.
    assert begun == (saved[at] if at else dict.fromkeys(begun, 0))
    for line in told:
      if "saves" in line:
        assert line["timesteps"] == line["environment_steps"] + line["ends"]
        assert line["size"] == line["sampled"] > 0
        saved[line.pop("saves")] = line
      elif "published" in line:
        published.append(line["published"])
      else:
        wait_until(lambda gone=set(line["actors"]): are_gone(gone))
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  assert [row["step"] for row in rows] == list(range(0, 6001, 100))
  for name in ("environment_steps", "replay_size"):
    assert np.all(np.diff([row[name] for row in rows[1:]]) >= 0)
  assert rows[0]["eval/return"] < -900 and rows[-1]["eval/return"] > -400


def test_a_run_with_actors_on_ray_continues_when_one_is_killed(tmp_path):
  workdir = tmp_path / "run"
  with started(workdir, f"train.steps = {ENDLESS}", "ActorPool.where = 'ray'") as process:
    wait_for(process, workdir, lambda: step(workdir) >= 300)
    os.kill(ray_actors(process)[0], signal.SIGKILL)
    wait_for(process, workdir, lambda: re.search(r"actor \d died", log_of(workdir)))
    now = step(workdir)
    wait_for(process, workdir, lambda: step(workdir) >= now + 300)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(SECONDS) == 42
  assert "Traceback" not in log_of(workdir)


def ray_actors(process):
  """Process ids of the actors in the Ray cluster that a learner started."""
  numbers = [int(folder.name) for folder in pathlib.Path("/proc").glob("[0-9]*")]
  return sorted(number for number in numbers if command_of(number).startswith("ray::RemoteActor")
                and process.pid in ancestors(number))


def ancestors(process_number):
  """Process ids of the parent of a process, of the parent's parent, and so on."""
  found = []
  while process_number > 1:
    try:
      stat = pathlib.Path(f"/proc/{process_number}/stat").read_text()
    except OSError:
      break
    process_number = int(stat.rpartition(")")[2].split()[1])
    found.append(process_number)
  return found
