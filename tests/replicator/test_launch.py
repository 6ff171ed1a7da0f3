"""The launcher, with tiny commands in place of a training.

The commands wait for each other by files, so that no test depends on the speed of the machine.
"""

import contextlib
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from replicator import launch
from replicator.checkpoints import checkpoint
from replicator.errors import UsageError
from replicator.launch import __main__, supervisor, task
from replicator.workdir.reader import TIMES

ROOT = pathlib.Path(__file__).parents[2]

HANG_SECONDS = 300
"""A test that takes longer hangs. No test that passes takes nearly as long."""

# What a command may use: `me` is its name, such as "worker0". `work` never returns. `wait_for`
# waits until another process has called `touch`. The alarm ends what a failed test leaves behind.
PRELUDE = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]["type"] + str(config["task"]["index"])
signal.alarm(600)
def work():
  while True: time.sleep(0.1)  # A signal that comes just before a sleep does not end it.
def wait_for(path):
  while not pathlib.Path(path).exists(): time.sleep(0.01)
def touch(path):
  pathlib.Path(path).touch()
"""
# As the training loop does: at the first SIGTERM or SIGINT, save and end with 42.
SAVES = """
def save(number, frame):
  print("saved", number)
  sys.exit(42)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
"""


def start(options: str, code: str) -> subprocess.Popen:
  command = [sys.executable, "-m", "replicator.launch", *options.split(), "--",
             sys.executable, "-c", PRELUDE + code]
  return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def run(options: str, code: str) -> tuple[int, list[str], str]:
  """Status, lines of stdout, stderr."""
  process = start(options, code)
  out, err = process.communicate(timeout=HANG_SECONDS)
  return process.returncode, out.splitlines(), err


def read_until(process: subprocess.Popen, lines: set[str]) -> None:
  """Reads the launcher's output until all of `lines` came, in any order."""
  assert process.stdout is not None
  while lines:
    line = process.stdout.readline()
    assert line, f"ended before {lines}"
    lines = lines - {line.rstrip("\n")}


def wait_until_gone(pid: int) -> None:
  deadline = time.monotonic() + HANG_SECONDS
  status = pathlib.Path(f"/proc/{pid}/status")
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    while "\nState:\tZ" not in status.read_text():
      assert time.monotonic() < deadline
      time.sleep(0.02)


# ---- TF_CONFIG ----------------------------------------------------------------------------------


def test_workers_get_one_cluster_and_their_own_index():
  status, lines, _ = run("--workers=2", "print(os.environ['TF_CONFIG'])")
  assert status == 0
  configs = [json.loads(line.removeprefix(f"[worker {i}] "))
             for i, line in enumerate(sorted(lines))]
  assert [c["task"] for c in configs] == [{"type": "worker", "index": i} for i in range(2)]
  assert configs[0]["cluster"] == configs[1]["cluster"]
  assert set(configs[0]["cluster"]) == {"worker"}
  assert len(set(configs[0]["cluster"]["worker"])) == 2


def test_parameter_servers_add_a_chief():
  configs = launch.tf_configs(workers=2, ps=1)
  assert [(c["task"]["type"], c["task"]["index"]) for c in configs] == [
    ("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
  cluster = configs[0]["cluster"]
  assert {kind: len(addresses) for kind, addresses in cluster.items()} == {
    "chief": 1, "worker": 2, "ps": 1}
  assert all(c["cluster"] == cluster for c in configs)
  assert len({a for addresses in cluster.values() for a in addresses}) == 4


@pytest.mark.parametrize("variables, direct", [
    ({"no_proxy": "localhost"}, "localhost,127.0.0.1"), ({}, "127.0.0.1"),
    ({"no_proxy": "localhost", "no_grpc_proxy": "a.example"}, "a.example,127.0.0.1")])
def test_a_proxy_does_not_stand_between_the_processes(variables, direct, monkeypatch):
  monkeypatch.setenv("http_proxy", "http://proxy.example")
  for name in ("no_proxy", "no_grpc_proxy"):
    monkeypatch.delenv(name, raising=False)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  _, lines, _ = run("--workers=1",
                    "print(os.environ.get('no_proxy'), os.environ['no_grpc_proxy'])")
  assert lines == [f"[worker 0] {variables.get('no_proxy')} {direct}"]


def test_ports_are_free():
  for address in launch.tf_configs(workers=4)[0]["cluster"]["worker"]:
    host, port = address.split(":")
    assert 12000 <= int(port) < 32768  # Below those of outgoing connections.
    with socket.socket() as listener:
      listener.bind((host, int(port)))


# ---- Output -------------------------------------------------------------------------------------


def test_both_streams_are_shown_line_by_line_after_the_name():
  status, lines, _ = run("--workers=1", """
print("one")
print("two", file=sys.stderr)
sys.stdout.write("no newline at the end")
""")
  assert status == 0
  assert lines == ["[worker 0] one", "[worker 0] two", "[worker 0] no newline at the end"]


def test_a_carriage_return_ends_a_line():
  _, lines, _ = run("--workers=1", r"sys.stdout.write('10 %\r20 %\r\nend\n')")
  assert lines == ["[worker 0] 10 %", "[worker 0] 20 %", "[worker 0] end"]


def test_bytes_that_are_not_text_pass_unchanged():
  process = subprocess.run(
    [sys.executable, "-m", "replicator.launch", "--workers=1", "--",
     sys.executable, "-c", r"import sys; sys.stdout.buffer.write(b'\xc3\xa9 \xff\n')"],
    cwd=ROOT, capture_output=True, check=True)
  assert process.stdout == b"[worker 0] \xc3\xa9 \xff\n"


def test_output_appears_while_the_processes_run():
  process = start("--workers=1", "print('begun'); work()")
  read_until(process, {"[worker 0] begun"})
  process.terminate()
  assert process.wait(timeout=HANG_SECONDS) == 128 + signal.SIGTERM
  process.communicate()


# ---- One fails ----------------------------------------------------------------------------------


def test_the_first_failure_ends_the_others_and_is_the_status():
  status, lines, err = run("--workers=3", """
if me == "worker1": print("failing"); sys.exit(7)
work()
""")
  assert status == 7
  assert lines == ["[worker 1] failing"]
  assert err == "launch: worker 1 ended with status 7\n"


def test_a_process_ended_by_a_signal_is_128_plus_its_number():
  status, _, _ = run("--workers=2", """
if me == "worker0": os.kill(os.getpid(), signal.SIGABRT)
work()
""")
  assert status == 128 + signal.SIGABRT


def test_what_ignores_sigterm_is_killed_with_its_children(monkeypatch, capfdbinary, tmp_path):
  monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.2)
  status = launch.launch([sys.executable, "-c", PRELUDE + f"""
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


@pytest.mark.slow
def test_a_long_save_is_not_cut_short_when_another_process_fails(tmp_path):
  status, lines, _ = run("--workers=2", f"""
ready = {str(tmp_path / "ready")!r}
def save(number, frame):
  time.sleep(15)  # A large checkpoint, on a slow disk.
  print("saved")
  sys.exit(42)
if me == "worker1": wait_for(ready); sys.exit(7)
signal.signal(signal.SIGTERM, save)
touch(ready)
work()
""")
  assert (status, lines) == (7, ["[worker 0] saved"])


def test_no_process_outlives_a_killed_launcher():
  process = start("--workers=1", "print(os.getpid()); work()")
  assert process.stdout is not None
  pid = int(process.stdout.readline().removeprefix("[worker 0] "))
  process.kill()
  process.communicate()
  wait_until_gone(pid)


# ---- Parameter servers --------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 5, 42])
def test_only_the_chief_decides(status):
  assert run("--workers=1 --ps=1", f"""
if me == "chief0": sys.exit({status})
work()
""")[0] == status


def test_a_parameter_server_that_dies_is_a_failure():
  status, _, err = run("--workers=1 --ps=1", "if me == 'ps0': sys.exit(6)\nwork()")
  assert status == 6
  assert err == "launch: ps 0 ended with status 6\n"


@pytest.mark.parametrize("end, status", [
  ("sys.exit(6)", 6), ("sys.exit(42)", 42), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
def test_a_worker_that_dies_is_started_again(end, status, tmp_path):
  code, lines, err = run("--workers=2 --ps=1", f"""
died, again = {str(tmp_path / "died")!r}, {str(tmp_path / "again")!r}
if me == "worker1" and not os.path.exists(died):
  touch(died)
  {end}
if me == "worker1":
  print("again", config["task"])
  touch(again)
if me == "chief0":
  wait_for(again)
  sys.exit(0)
work()
""")
  assert code == 0
  assert lines == ["[worker 1] again {'type': 'worker', 'index': 1}"]
  assert err == f"launch: worker 1 ended with status {status}, and was started again\n"


@pytest.mark.parametrize("status, deaths", [(6, task.MAX_DEATHS), (2, 1)])
def test_a_worker_that_dies_again_and_again_ends_the_run(status, deaths, monkeypatch, capfd):
  monkeypatch.setattr(task, "DEATH_SECONDS", math.inf)
  assert launch.launch([sys.executable, "-c", PRELUDE + f"""
if me == "worker0": sys.exit({status})
work()
"""], workers=1, ps=1) == status
  line = f"launch: worker 0 ended with status {status}"
  assert capfd.readouterr().err.splitlines() == [
      *[f"{line}, and was started again"] * (deaths - 1), line]


def test_a_worker_may_die_often_in_a_long_time(monkeypatch, capfd, tmp_path):
  monkeypatch.setattr(task, "DEATH_SECONDS", 0.0)  # Every death is long after the one before.
  deaths = task.MAX_DEATHS + 1
  assert launch.launch([sys.executable, "-c", PRELUDE + counts_starts(tmp_path) + f"""
if me == "worker0" and start <= {deaths}: sys.exit(6)
if me == "chief0": wait_for(folder / "worker0-{deaths + 1}"); sys.exit(0)
work()
"""], workers=1, ps=1) == 0
  assert capfd.readouterr().err.splitlines() == [
      "launch: worker 0 ended with status 6, and was started again"] * deaths


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
  process = start("--workers=1 --ps=1", f"""
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
""")
  read_until(process, {"[chief 0] ready", "[worker 0] ready", "[ps 0] ready"})
  process.terminate()
  out, _ = process.communicate(timeout=HANG_SECONDS)
  assert process.returncode == 42
  first, *rest = out.splitlines()
  assert first == "[chief 0] saved"
  assert set(rest) == {"[worker 0] ended after", "[ps 0] ended after"}


# ---- Restarts -----------------------------------------------------------------------------------


def counts_starts(folder: pathlib.Path) -> str:
  """Code that counts the starts of this process in `start`, and leaves a file for each."""
  return f"""
folder = pathlib.Path({str(folder)!r})
start = len(list(folder.glob(me + "-*"))) + 1
(folder / f"{{me}}-{{start}}").write_text(str(config["cluster"]))
"""


@pytest.mark.parametrize("options, culprit, end, status", [
  ("--workers=2", "worker1", "os.kill(os.getpid(), signal.SIGKILL)", 137),
  ("--workers=1", "worker0", "sys.exit(1)", 1),
  ("--workers=1 --ps=1", "chief0", "sys.exit(1)", 1),
  ("--workers=1 --ps=1", "ps0", "sys.exit(42)", 42),
])
def test_a_run_whose_process_died_is_started_again_as_a_whole(options, culprit, end, status,
                                                              tmp_path):
  code, _, err = run(f"{options} --max_restarts=3", counts_starts(tmp_path) + f"""
if me == {culprit!r} and start < 3:
  {end}
decides = me == "chief0" or "chief" not in config["cluster"]
if decides: wait_for(folder / "{culprit}-3")
else: work()
""")
  assert code == 0
  assert err.splitlines() == [
      f"launch: {culprit[:-1]} {culprit[-1]} ended with status {status}; restart {n} of 3"
      for n in (1, 2)]
  starts = list(tmp_path.glob(f"{culprit}-*"))
  assert len(starts) == 3
  # Each start has new ports, which may be those of an earlier one by chance.
  assert len({path.read_text() for path in starts}) > 1


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
  process = start("--workers=1 --max_restarts=2", counts_starts(tmp_path) + SAVES + """
if start == 1: sys.exit(1)
print('ready'); work()
""")
  read_until(process, {"[worker 0] ready"})
  process.terminate()
  _, err = process.communicate(timeout=HANG_SECONDS)
  assert process.returncode == 42
  assert err == "launch: worker 0 ended with status 1; restart 1 of 2\n"


def test_a_signal_between_two_starts_prevents_the_second(capfd, tmp_path):
  assert launch.launch([sys.executable, "-c", PRELUDE + f"""
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
  assert sorted(capfd.readouterr().out.splitlines()) == [
      "[worker 0] worker0", "[worker 1] worker1"]


def test_a_process_that_fails_to_save_is_not_started_again():
  process = start("--workers=1 --max_restarts=3", """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
print("ready"); work()
""")
  read_until(process, {"[worker 0] ready"})
  process.terminate()
  _, err = process.communicate(timeout=HANG_SECONDS)
  assert process.returncode == 9
  assert err == "launch: worker 0 ended with status 9\n"


def pid_of_worker(launcher: int, index: int) -> int:
  children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
  (pid,) = (int(pid) for pid in children if f'"index": {index}' in
            pathlib.Path(f"/proc/{pid}/environ").read_text().partition("TF_CONFIG=")[2])
  return pid


def train(workdir: pathlib.Path, *options: str) -> subprocess.Popen:
  return subprocess.Popen(
      [sys.executable, "-m", "replicator.launch", "--workers=2", *options, "--",
       sys.executable, "-m", "tests.programs.planted_bugs", f"--workdir={workdir}",
       *(f"--gin_param={binding}" for binding in (
           "Replicator.strategy = 'multi_worker_mirrored'", "train.steps = 400",
           "train.log_every = 30", "train.checkpoint_every = 40", "train.eval_every = 0",
           "train.global_batch_size = 8", "Regression.norm = 'global'"))],
      cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(workdir: pathlib.Path) -> list[dict]:
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.mark.slow
def test_a_training_whose_worker_is_killed_ends_as_the_unbroken_one(tmp_path):
  unbroken = train(tmp_path / "unbroken")
  _, err = unbroken.communicate(timeout=HANG_SECONDS)
  assert unbroken.returncode == 0, err
  broken = train(tmp_path / "broken", "--max_restarts=2")
  deadline = time.monotonic() + HANG_SECONDS
  while not list((tmp_path / "broken").glob("checkpoints/step-*")):
    assert time.monotonic() < deadline and broken.poll() is None
    time.sleep(0.01)
  os.kill(pid_of_worker(broken.pid, 1), signal.SIGKILL)
  out, err = broken.communicate(timeout=HANG_SECONDS)
  assert broken.returncode == 0, err
  assert "launch: worker 1 ended with status 137; restart 1 of 2" in err
  assert "resumed at step" in out
  assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
  final = [checkpoint.read(tmp_path / run / "checkpoints") for run in ("unbroken", "broken")]
  assert list(final[0]) == list(final[1])
  assert all(final[0][path].tobytes() == final[1][path].tobytes() for path in final[0])


# ---- Signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_all_save(number):
  process = start("--workers=2", SAVES + "print('ready'); work()")
  read_until(process, {"[worker 0] ready", "[worker 1] ready"})
  process.send_signal(number)
  out, err = process.communicate(timeout=HANG_SECONDS)
  assert process.returncode == 42
  assert sorted(out.splitlines()) == [f"[worker {i}] saved {int(number)}" for i in range(2)]
  assert err == ""


def test_a_process_that_fails_to_save_gives_the_status():
  process = start("--workers=2", SAVES + """
if me == "worker1": signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
print("ready"); work()
""")
  read_until(process, {"[worker 0] ready", "[worker 1] ready"})
  process.terminate()
  process.communicate(timeout=HANG_SECONDS)
  assert process.returncode == 9


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
  assert process.wait(timeout=HANG_SECONDS) == 42
  assert process.stderr is not None
  process.stderr.close()


# ---- Bad command lines --------------------------------------------------------------------------


@pytest.mark.parametrize("argv, message", [
  (["--workers=2"], "no command to start: write it after '--'"),
  (["--workers=2", "--"], "no command to start"),
  (["--workers=0", "--", "true"], "--workers=0: a cluster needs at least --workers=1"),
  (["--workers=2", "--ps=-1", "--", "true"], "--ps=-1: write the number"),
  (["--workers=2", "--max_restarts=-1", "--", "true"], "--max_restarts=-1: write how often"),
  (["--workers=2", "--max_restart=1", "--", "true"], "Did you mean '--max_restarts'?"),
  (["--workers=two", "--", "true"], "invalid int value: 'two'"),
  (["--", "true"], "required: --workers"),
  (["--worker=2", "--workers=2", "--", "true"], "'--worker=2'. Did you mean '--workers'?"),
  (["--workers=2", "true"], "unknown argument 'true'. The command goes after '--'."),
  (["--workers=2", "--", "no-such-program"], "cannot run 'no-such-program': no such program"),
])
def test_a_bad_command_line_is_one_line_of_error(argv, message, capsys):
  assert __main__.main(argv) == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.startswith("launch: ") and error.count("\n") == 1


def test_a_file_that_cannot_run_is_one_line_of_error(tmp_path):
  broken = tmp_path / "broken"
  broken.write_bytes(b"\x7fELF nonsense")
  os.chmod(broken, 0o755)
  with pytest.raises(UsageError, match=r"cannot run '.*broken': Exec format error"):
    launch.launch([str(broken)], workers=2)


def test_everything_after_the_dashes_is_the_command():
  assert __main__.parse(["--workers=2", "--ps=1", "--max_restarts=3", "--", "sh", "--", "--ps=3"]
                      ) == (2, 1, 3, ["sh", "--", "--ps=3"])
  assert __main__.parse(["--workers=1", "--", "sh"]) == (1, 0, 0, ["sh"])
