"""Which process ends the others, and with which status, when one fails."""

import math
import sys

import pytest

from replicator import launch
from replicator.launch import supervisor
from tests.programs.processes import wait_until_gone
from tests.replicator.launch import clusters


def test_the_first_failure_is_the_status_and_the_others_may_save(tmp_path):
  status, lines, err = clusters.run("--workers=2", f"""
ready = {str(tmp_path / "ready")!r}
def save(number, frame):
  time.sleep(2)  # A large checkpoint.
  print("saved")
  sys.exit(42)
if me == "worker1": wait_for(ready); print("failing"); sys.exit(7)
signal.signal(signal.SIGTERM, save)
touch(ready)
work()
""")
  assert (status, lines) == (7, ["[worker 1] failing", "[worker 0] saved"])
  assert err == "launch: worker 1 ended with status 7\n"


def test_what_ignores_sigterm_is_killed_with_its_children(monkeypatch, capfdbinary, tmp_path):
  monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.2)
  status = launch.launch([sys.executable, "-c", clusters.PRELUDE + f"""
import subprocess
ready = {str(tmp_path / "ready")!r}
if me == "worker0": wait_for(ready); sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), subprocess.Popen(["sleep", "inf"]).pid)
touch(ready)
work()
"""], workers=2)
  assert status == 3
  pids = capfdbinary.readouterr().out.removeprefix(b"[worker 1] ").split()
  assert len(pids) == 2
  for pid in pids:
    wait_until_gone(int(pid))


def test_only_the_chief_decides():
  assert clusters.run("--workers=1 --ps=1", "if me == 'chief0': sys.exit(5)\nwork()")[0] == 5


@pytest.mark.parametrize("status, deaths", [(6, supervisor.MAX_DEATHS), (2, 1)])
def test_a_worker_that_dies_again_and_again_ends_the_run(status, deaths, monkeypatch, capfd):
  monkeypatch.setattr(supervisor, "DEATH_SECONDS", math.inf)
  assert launch.launch([sys.executable, "-c", clusters.PRELUDE + f"""
if me == "worker0": sys.exit({status})
work()
"""], workers=1, ps=1) == status
  line = f"launch: worker 0 ended with status {status}"
  assert capfd.readouterr().err.splitlines() == [
      *[f"{line}, and was started again"] * (deaths - 1), line]


def test_a_worker_that_dies_is_started_again_and_may_die_often_in_a_long_time(
    monkeypatch, capfd, tmp_path):
  monkeypatch.setattr(supervisor, "DEATH_SECONDS", 0.0)  # Every death is long after the one before.
  monkeypatch.setattr(supervisor, "MAX_DEATHS", 2)
  code = clusters.PRELUDE + clusters.counts_starts(tmp_path) + """
if me == "worker1" and start == 1: sys.exit(6)
if me == "worker1" and start == 2: os.kill(os.getpid(), signal.SIGKILL)
if me == "worker1" and start == 3: sys.exit(42)
if me == "worker1": print("again", config["task"]); touch(folder / "again")
if me == "chief0": wait_for(folder / "again"); sys.exit(0)
work()
"""
  assert launch.launch([sys.executable, "-c", code], workers=2, ps=1) == 0
  out, err = capfd.readouterr()
  assert out == "[worker 1] again {'type': 'worker', 'index': 1}\n"
  assert err.splitlines() == [f"launch: worker 1 ended with status {status}, and was started again"
                              for status in (6, 137, 42)]


def test_a_server_that_ends_with_0_is_not_a_failure():
  status, lines, _ = clusters.run("--workers=1 --ps=1", """
def processes():
  return pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
if me == "chief0":
  while processes() != [str(os.getpid())]: time.sleep(0.01)
  print("trained")
""")
  assert status == 0
  assert lines == ["[chief 0] trained"]


def test_the_chief_saves_before_the_servers_end(tmp_path):
  status, (first, *rest), _ = clusters.run("--workers=1 --ps=1", f"""
saved = pathlib.Path({str(tmp_path / "saved")!r})
def save(number, frame):
  time.sleep(0.5)  # A server that was asked to end together with the chief would be faster.
  saved.touch()
  print("saved")
  sys.exit(42)
def end(number, frame):
  print("ended", "after" if saved.exists() else "before")
  sys.exit(0)
signal.signal(signal.SIGTERM, save if me == "chief0" else end)
print("ready")
work()
""", "[chief 0] ready", "[worker 0] ready", "[ps 0] ready")
  assert (status, first) == (42, "[chief 0] saved")
  assert set(rest) == {"[worker 0] ended after", "[ps 0] ended after"}
