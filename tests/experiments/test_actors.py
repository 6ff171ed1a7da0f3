"""D4PG with actors in processes of their own: killed, interrupted, resumed, and left alone."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

ENDLESS = 1_000_000
HANG_SECONDS = 300
SETTINGS = [
    "make_actor.processes = 2", "Environments.number = 2", "train.log_every = 100",
    "train.eval_every = 0", "train.checkpoint_every = 100", "Policy.sizes = (16, 16)",
    "Critic.sizes = (16, 16)", "Replicator.jit_compile = False"]


@contextlib.contextmanager
def started(workdir, *bindings):
  """A run, in a session of its own as if from a terminal; all of it is ended in the end."""
  command = [sys.executable, "-m", "experiments.d4pg", "--gin_file=configs/d4pg_pendulum.gin",
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
  deadline = time.monotonic() + HANG_SECONDS
  while not condition():
    assert process.poll() is None and time.monotonic() < deadline, told(workdir)
    time.sleep(0.05)


def told(workdir):
  return pathlib.Path(f"{workdir}.log").read_text()


def step(workdir):
  """The last one that was logged."""
  file = workdir / "metrics.jsonl"
  lines = file.read_text().splitlines() if file.exists() else []
  return json.loads(lines[-1])["step"] if lines else 0


def actors(process):
  """Process numbers of the learner's actors."""
  children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
  return {int(child) for child in children if "spawn_main" in command_of(child)}


def command_of(process_number):
  try:
    return pathlib.Path(f"/proc/{process_number}/cmdline").read_text()
  except OSError:
    return ""


def are_gone(processes):
  return not any("spawn_main" in command_of(number) for number in processes)


def assert_gone(processes):
  deadline = time.monotonic() + HANG_SECONDS
  while not are_gone(processes):
    assert time.monotonic() < deadline
    time.sleep(0.1)


def test_actors_are_replaced_when_killed_and_end_with_the_learner(tmp_path):
  workdir = tmp_path / "run"
  with started(workdir, f"train.steps = {ENDLESS}") as process:
    wait_for(process, workdir, lambda: step(workdir) >= 300)
    before = actors(process)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    wait_for(process, workdir, lambda: "died (killed by SIGKILL)" in told(workdir))
    now = step(workdir)
    wait_for(process, workdir, lambda: step(workdir) >= now + 500)
    after = actors(process)
    assert len(after) == 2 and len(after & before) == 1
    os.killpg(process.pid, signal.SIGINT)  # As Ctrl-C does: it reaches the actors, too.
    assert process.wait(HANG_SECONDS) == 42
    assert_gone(before | after)
  assert re.search(r"stopped at step \d+, which is saved", told(workdir))
  assert len(re.findall(r"actor \d died", told(workdir))) == 1
  assert "Traceback" not in told(workdir) and "Warning" not in told(workdir)

  now = step(workdir)
  with started(workdir, f"train.steps = {ENDLESS}") as process:
    wait_for(process, workdir, lambda: step(workdir) >= now + 300)
    assert "resumed at step" in told(workdir)
    after = actors(process)
    process.kill()  # It has no time to end them.
    assert_gone(after)


def test_a_run_with_actors_on_ray_goes_on_when_one_is_killed(tmp_path):
  workdir = tmp_path / "run"
  with started(workdir, f"train.steps = {ENDLESS}", "ActorPool.where = 'ray'") as process:
    wait_for(process, workdir, lambda: step(workdir) >= 300)
    os.kill(ray_actors(process)[0], signal.SIGKILL)
    wait_for(process, workdir, lambda: re.search(r"actor \d died", told(workdir)))
    now = step(workdir)
    wait_for(process, workdir, lambda: step(workdir) >= now + 300)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(HANG_SECONDS) == 42
  assert "Traceback" not in told(workdir)


def ray_actors(process):
  """Process numbers of the actors of the cluster of Ray that a learner has started."""
  numbers = [int(folder.name) for folder in pathlib.Path("/proc").glob("[0-9]*")]
  return sorted(number for number in numbers if command_of(number).startswith("ray::Worker")
                and process.pid in ancestors(number))


def ancestors(process_number):
  """Numbers of the parent of a process, of its parent, and so on."""
  found = []
  while process_number > 1:
    try:
      stat = pathlib.Path(f"/proc/{process_number}/stat").read_text()
    except OSError:
      break
    process_number = int(stat.rpartition(")")[2].split()[1])
    found.append(process_number)
  return found
