"""Failures, restarts and signals: what one process does decides about the others.

That a restarted training ends as the unbroken one is in `tests/experiments/test_resume.py`.
"""

import math
import signal

from replicator.tools.launch import supervisor
from tests.programs.processes import SECONDS, wait_until_gone
from tests.replicator.tools.launch.clusters import (
  SAVES,
  counts_starts,
  read_until,
  run,
  run_here,
  start,
)

import pytest

# ---- Failures -----------------------------------------------------------------------------------


def test_the_first_failure_is_the_status_and_the_others_may_save(tmp_path):
  status, lines, err = run("--workers=2", f"""
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
  status = run_here(f"""
import subprocess
ready = {str(tmp_path / "ready")!r}
if me == "worker0": wait_for(ready); sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), subprocess.Popen(["sleep", "inf"]).pid)
touch(ready)
work()
""", workers=2)
  assert status == 3
  pids = capfdbinary.readouterr().out.removeprefix(b"[worker 1] ").split()
  assert len(pids) == 2
  for pid in pids:
    wait_until_gone(int(pid))


def test_only_the_chief_decides():
  assert run("--workers=1 --ps=1", "if me == 'chief0': sys.exit(5)\nwork()")[0] == 5


@pytest.mark.parametrize("status, deaths", [(6, supervisor.MAX_DEATHS), (2, 1)])
def test_a_worker_that_dies_again_and_again_ends_the_run(status, deaths, monkeypatch, capfd):
  monkeypatch.setattr(supervisor, "DEATH_SECONDS", math.inf)
  assert run_here(f"""
if me == "worker0": sys.exit({status})
work()
""", workers=1, ps=1) == status
  line = f"launch: worker 0 ended with status {status}"
  assert capfd.readouterr().err.splitlines() == [
      *[f"{line}, and was restarted"] * (deaths - 1), line]


def test_a_worker_that_dies_is_started_again_and_may_die_often_in_a_long_time(
    monkeypatch, capfd, tmp_path):
  monkeypatch.setattr(supervisor, "DEATH_SECONDS", 0.0)  # Every death is long after the one before.
  monkeypatch.setattr(supervisor, "MAX_DEATHS", 2)
  code = counts_starts(tmp_path) + """
if me == "worker1" and start == 1: sys.exit(6)
if me == "worker1" and start == 2: os.kill(os.getpid(), signal.SIGKILL)
if me == "worker1" and start == 3: sys.exit(42)
if me == "worker1": print("again", config["task"]); touch(folder / "again")
if me == "chief0": wait_for(folder / "again"); sys.exit(0)
work()
"""
  assert run_here(code, workers=2, ps=1) == 0
  out, err = capfd.readouterr()
  assert out == "[worker 1] again {'type': 'worker', 'index': 1}\n"
  assert err.splitlines() == [f"launch: worker 1 ended with status {status}, and was restarted"
                              for status in (6, 137, 42)]


def test_a_server_that_ends_with_0_is_not_a_failure():
  status, lines, _ = run("--workers=1 --ps=1", """
def processes():
  return pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
if me == "chief0":
  while processes() != [str(os.getpid())]: time.sleep(0.01)
  print("trained")
""")
  assert status == 0
  assert lines == ["[chief 0] trained"]


def test_the_chief_saves_before_the_servers_end(tmp_path):
  status, (first, *rest), _ = run("--workers=1 --ps=1", f"""
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


# ---- Restarts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, culprit, end, status", [
  ("--workers=2", "worker1", "os.kill(os.getpid(), signal.SIGKILL)", 137),
  ("--workers=1 --ps=1", "ps0", "sys.exit(42)", 42),
])
def test_a_run_whose_process_died_is_started_again_as_a_whole(options, culprit, end, status,
                                                              tmp_path):
  code, _, err = run(f"{options} --max_restarts=3", counts_starts(tmp_path) + f"""
if me == {culprit!r} and start < 2:
  {end}
decides = me == "chief0" or "chief" not in config["cluster"]
if decides: wait_for(folder / "{culprit}-2")
else: work()
""")
  assert code == 0
  assert err == (
      f"launch: {culprit[:-1]} {culprit[-1]} ended with status {status}; restart 1 of 3\n")
  first, second = (path.read_text() for path in tmp_path.glob(f"{culprit}-*"))
  assert first != second  # Each start has new ports.


def test_restarts_end():
  status, lines, err = run("--workers=2 --max_restarts=2",
                           "if me == 'worker1': print(me); sys.exit(7)\nwork()")
  assert status == 7
  assert lines == ["[worker 1] worker1"] * 3
  line = "launch: worker 1 ended with status 7"
  assert err.splitlines() == [f"{line}; restart 1 of 2", f"{line}; restart 2 of 2", line]


@pytest.mark.parametrize("status", [2, 42])
def test_a_bad_command_line_and_a_preempted_run_are_not_started_again(status):
  code, _, err = run("--workers=1 --max_restarts=3", f"sys.exit({status})")
  assert code == status and "restart" not in err


def test_a_signal_ends_a_run_that_was_started_again(tmp_path):
  code = counts_starts(tmp_path) + SAVES + """
if start == 1: sys.exit(1)
print('ready'); work()
"""
  status, _, err = run("--workers=1 --max_restarts=2", code, "[worker 0] ready")
  assert (status, err) == (42, "launch: worker 0 ended with status 1; restart 1 of 2\n")


def test_a_signal_between_two_starts_prevents_the_second(capfd, tmp_path):
  assert run_here(f"""
ready = {str(tmp_path / "ready")!r}
def pass_on(number, frame):
  os.kill(os.getppid(), number)
  sys.exit(0)
signal.signal(signal.SIGTERM, pass_on)
print(me)
if me == "worker1": wait_for(ready); sys.exit(1)
touch(ready)
work()
""", workers=2, max_restarts=5) == 42
  assert sorted(capfd.readouterr().out.splitlines()) == ["[worker 0] worker0", "[worker 1] worker1"]


def test_a_process_that_fails_to_save_is_not_started_again():
  status, _, err = run("--workers=1 --max_restarts=3", """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
print("ready"); work()
""", "[worker 0] ready")
  assert (status, err) == (9, "launch: worker 0 ended with status 9\n")


# ---- Signals -------------------------------------------------------------------------------------


def test_a_second_signal_ends_what_the_first_did_not(monkeypatch, capfdbinary):
  monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.2)
  monkeypatch.setattr(supervisor, "SAME_SIGNAL_SECONDS", 0.0)
  assert run_here("""
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:  # Two that come too fast are one.
  os.kill(os.getppid(), signal.SIGINT)
  time.sleep(0.1)
""", workers=1) == 128 + signal.SIGINT
  assert capfdbinary.readouterr().out == b""


def test_a_signal_that_arrives_twice_counts_once(monkeypatch, capfd, tmp_path):
  monkeypatch.setattr(supervisor, "SAME_SIGNAL_SECONDS", math.inf)
  assert run_here(f"""
came = {str(tmp_path / "came")!r}
signal.signal(signal.SIGTERM, lambda number, frame: touch(came))
os.kill(os.getppid(), signal.SIGTERM)
wait_for(came)
for _ in range(5):
  os.kill(os.getppid(), signal.SIGTERM)
  time.sleep(0.02)
print("saved")
sys.exit(42)
""", workers=1) == 42
  assert capfd.readouterr().out == "[worker 0] saved\n"


def test_one_preempted_preempts_all(tmp_path):
  status, lines, _ = run("--workers=2", SAVES + f"""
ready = {str(tmp_path / "ready")!r}
if me == "worker0": wait_for(ready); sys.exit(42)
touch(ready)
work()
""")
  assert status == 42
  assert lines == [f"[worker 1] saved {int(signal.SIGTERM)}"]


def test_a_reader_that_leaves_ends_the_cluster():
  process = start("--workers=1", SAVES + "while True: print('line'); time.sleep(0.01)")
  read_until(process, {"[worker 0] line"})
  assert process.stdout is not None
  process.stdout.close()
  assert process.wait(timeout=SECONDS) == 42
  assert process.stderr is not None
  process.stderr.close()
