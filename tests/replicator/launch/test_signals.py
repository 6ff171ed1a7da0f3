"""Signals go to every process, which save; the launcher ends with their status."""

import math
import signal
import sys

from replicator import launch
from replicator.launch import supervisor
from tests.programs.processes import SECONDS
from tests.replicator.launch.clusters import PRELUDE, SAVES, read_until, run, start


def test_a_signal_is_passed_on_and_all_save():
  status, lines, err = run("--workers=2", SAVES + "print('ready'); work()", "[worker 0] ready",
                           "[worker 1] ready", stop=signal.SIGINT)
  assert (status, err) == (42, "")
  assert sorted(lines) == [f"[worker {i}] saved {int(signal.SIGINT)}" for i in range(2)]


def test_a_second_signal_ends_what_the_first_did_not(monkeypatch, capfdbinary):
  monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.2)
  monkeypatch.setattr(supervisor, "SAME_SIGNAL_SECONDS", 0.0)
  assert launch.launch([sys.executable, "-c", PRELUDE + """
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:  # Two that come too fast are one.
  os.kill(os.getppid(), signal.SIGINT)
  time.sleep(0.1)
"""], workers=1) == 128 + signal.SIGINT
  assert capfdbinary.readouterr().out == b""


def test_a_signal_that_arrives_twice_counts_once(monkeypatch, capfd, tmp_path):
  monkeypatch.setattr(supervisor, "SAME_SIGNAL_SECONDS", math.inf)
  assert launch.launch([sys.executable, "-c", PRELUDE + f"""
came = {str(tmp_path / "came")!r}
signal.signal(signal.SIGTERM, lambda number, frame: touch(came))
os.kill(os.getppid(), signal.SIGTERM)
wait_for(came)
for _ in range(5):
  os.kill(os.getppid(), signal.SIGTERM)
  time.sleep(0.02)
print("saved")
sys.exit(42)
"""], workers=1) == 42
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
