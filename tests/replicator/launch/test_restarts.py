"""A run whose process died is started again as a whole.

That a training then ends as the unbroken one is in `tests/experiments/test_resume.py`.
"""

import sys

import pytest

from replicator import launch
from tests.replicator.launch import clusters


@pytest.mark.parametrize("options, culprit, end, status", [
  ("--workers=2", "worker1", "os.kill(os.getpid(), signal.SIGKILL)", 137),
  ("--workers=1 --ps=1", "ps0", "sys.exit(42)", 42),
])
def test_a_run_whose_process_died_is_started_again_as_a_whole(options, culprit, end, status,
                                                              tmp_path):
  code, _, err = clusters.run(f"{options} --max_restarts=3", clusters.counts_starts(tmp_path) + f"""
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
  status, lines, err = clusters.run("--workers=2 --max_restarts=2",
                                    "if me == 'worker1': print(me); sys.exit(7)\nwork()")
  assert status == 7
  assert lines == ["[worker 1] worker1"] * 3
  line = "launch: worker 1 ended with status 7"
  assert err.splitlines() == [f"{line}; restart 1 of 2", f"{line}; restart 2 of 2", line]


@pytest.mark.parametrize("status", [2, 42])
def test_a_bad_command_line_and_a_preempted_run_are_not_started_again(status):
  code, _, err = clusters.run("--workers=1 --max_restarts=3", f"sys.exit({status})")
  assert code == status and "restart" not in err


def test_a_signal_ends_a_run_that_was_started_again(tmp_path):
  code = clusters.counts_starts(tmp_path) + clusters.SAVES + """
if start == 1: sys.exit(1)
print('ready'); work()
"""
  status, _, err = clusters.run("--workers=1 --max_restarts=2", code, "[worker 0] ready")
  assert (status, err) == (42, "launch: worker 0 ended with status 1; restart 1 of 2\n")


def test_a_signal_between_two_starts_prevents_the_second(capfd, tmp_path):
  assert launch.launch([sys.executable, "-c", clusters.PRELUDE + f"""
ready = {str(tmp_path / "ready")!r}
def pass_on(number, frame):
  os.kill(os.getppid(), number)
  sys.exit(0)
signal.signal(signal.SIGTERM, pass_on)
print(me)
if me == "worker1": wait_for(ready); sys.exit(1)
touch(ready)
work()
"""], workers=2, max_restarts=5) == 42
  assert sorted(capfd.readouterr().out.splitlines()) == ["[worker 0] worker0", "[worker 1] worker1"]


def test_a_process_that_fails_to_save_is_not_started_again():
  status, _, err = clusters.run("--workers=1 --max_restarts=3", """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
print("ready"); work()
""", "[worker 0] ready")
  assert (status, err) == (9, "launch: worker 0 ended with status 9\n")
