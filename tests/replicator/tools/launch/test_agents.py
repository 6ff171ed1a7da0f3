"""Processes of agents: here agents in processes of this machine, as Spark and Ray start them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

from replicator.errors import RunFailed
from replicator.tools import launch
from replicator.tools.launch import __main__, agents
from tests.programs.processes import wait_until, wait_until_gone
from tests.replicator.tools.launch.clusters import SAVES, counts_starts, run_here

import pytest

cloudpickle = pytest.importorskip("cloudpickle")  # What Spark and Ray pickle with.
AGENT = """
import os, pickle, sys
pickle.load(sys.stdin.buffer)(int(sys.argv[1]), {"AGENT": str(os.getpid())})
"""
KILL_AGENT = "os.kill(int(os.environ['AGENT']), signal.SIGKILL)\n"


@contextlib.contextmanager
def started(count: int, agent: agents.Agent) -> Iterator:
  processes = [subprocess.Popen([sys.executable, "-c", AGENT, str(number)], cwd="/",
                                stdin=subprocess.PIPE) for number in range(count)]
  for process in processes:
    process.stdin.write(cloudpickle.dumps(agent))
    process.stdin.close()
  try:
    yield lambda: ""
  finally:
    for process in processes:
      process.wait(timeout=60)


def run(code: str, workers: int = 2, **options) -> int:
  return run_here(code, workers, placement=agents.Agents("127.0.0.1", "--agents", started),
                  **options)


def test_each_agent_runs_a_process_here_and_its_lines_and_status_come_back(capfdbinary, tmp_path):
  assert run(f"printed = {str(tmp_path / 'printed')!r}" + r"""
print(me, os.getcwd())
print("to stderr", file=sys.stderr)
sys.stdout.buffer.write(b"10 %\r\xff without newline")
sys.stdout.flush()
for address in config["cluster"]["worker"]:
  assert address.startswith("127.0.0.1:")
import socket
own = config["cluster"]["worker"][config["task"]["index"]]
socket.create_server(("127.0.0.1", int(own.rpartition(":")[2]))).close()
if me == "worker1":
  touch(printed)
  work()
wait_for(printed)
sys.exit(7)
""") == 7
  out, err = capfdbinary.readouterr()
  lines = out.splitlines()
  for index in (0, 1):
    assert [line for line in lines if line.startswith(b"[worker %d] " % index)] == [
        b"[worker %d] %s" % (index, line) for line in (
            f"worker{index} {os.getcwd()}".encode(), b"to stderr", b"10 %",
            b"\xff without newline")]
  assert err == b"launch: worker 0 ended with status 7\n"


def test_all_save_when_the_launcher_is_asked_to_stop(capfd, tmp_path):
  assert run(SAVES + f"""
touch({str(tmp_path)!r} + "/" + me)
for other in ("worker0", "worker1"): wait_for({str(tmp_path)!r} + "/" + other)
if me == "worker0": os.kill({os.getpid()}, signal.SIGINT)
work()
""") == 42
  out, err = capfd.readouterr()
  assert sorted(out.splitlines()) == [f"[worker {i}] saved {int(signal.SIGINT)}" for i in (0, 1)]
  assert err == ""


@pytest.mark.parametrize("worker_0", ["work()", "wait_for(folder / 'ready'); sys.exit(1)"],
                         ids=["the others are ended", "another one misses it first"])
def test_a_lost_agent_is_one_line_and_costs_a_restart(worker_0, capfd, tmp_path):
  assert run(f"""
(pathlib.Path({str(tmp_path)!r}) / f"{{me}}.pid").write_text(str(os.getpid()))
{counts_starts(tmp_path)}
if start == 1:
  for other in ("worker0-1", "worker1-1"): wait_for(folder / other)
  if me == "worker0": {worker_0}
  other = "/proc/" + (folder / "worker0.pid").read_text()
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  (folder / "ready").touch()
  while os.path.exists(other) and {worker_0!r} != "work()": time.sleep(0.02)
  {KILL_AGENT}
  work()
""", max_restarts=1) == 0
  assert capfd.readouterr().err == (
      "launch: worker 1 was lost: the connection to 127.0.0.1 ended; restart 1 of 1\n")
  first, second = ((tmp_path / f"worker1-{start}").read_text() for start in (1, 2))
  assert first != second
  wait_until_gone(int((tmp_path / "worker1.pid").read_text()))


def test_a_worker_beside_a_chief_starts_again_in_its_place(capfd, tmp_path):
  assert run(counts_starts(tmp_path) + """
if me == "worker0" and start == 1: sys.exit(6)
if me == "chief0": wait_for(folder / "worker0-2"); sys.exit(0)
work()
""", workers=1, ps=1) == 0
  assert capfd.readouterr().err == "launch: worker 0 ended with status 6, and was restarted\n"


def test_only_who_knows_the_secret_gets_in():
  door = agents._Door("127.0.0.1", 1)
  with door:
    for greeting in ({"secret": "other", "number": 0, "host": "h", "ports": [1]}, {"number": 0}, 7):
      with socket.create_connection(door._listener.getsockname(), timeout=30) as stranger:
        stranger.sendall(json.dumps(greeting).encode() + b"\n")
        assert stranger.recv(1) == b""
    assert not door.waiting
    thread = threading.Thread(target=door.agent, args=(0, {}))
    thread.start()
    wait_until(lambda: door.waiting)
    (slot,) = door.slots()
    assert slot.address.startswith("127.0.0.1:")
    process = slot.start(["true"], {})
    assert [*process.lines()] == [] and process.wait() == 0
  thread.join(timeout=60)
  assert not thread.is_alive()


def test_agents_that_cannot_start_end_the_launch():
  place = agents.Agents("127.0.0.1", "--agents", lambda count, agent: contextlib.nullcontext(
      lambda: "no room"))
  with pytest.raises(RunFailed, match=r"^--agents: no room$"):
    launch.launch(["true"], workers=1, placement=place)


# ---- Bad command lines --------------------------------------------------------------------------


def test_a_missing_package_is_named(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "pyspark", None)
  assert __main__.main(["--spark=local", "--workers=1", "--", "true"]) == 2
  assert capsys.readouterr().err == (
      "launch: --spark=local: PySpark is not installed; pip install 'replicator[spark]'\n")


@pytest.mark.parametrize("flag, module", [("--spark=spark://", "pyspark"), ("--ray=", "ray")])
def test_an_address_where_nobody_listens(flag, module, capsys):
  pytest.importorskip(module)
  with socket.socket() as holder:  # It does not listen, and nobody else can at this port.
    holder.bind(("127.0.0.1", 0))
    argument = f"{flag}127.0.0.1:{holder.getsockname()[1]}"
    assert __main__.main([argument, "--workers=1", "--", "true"]) == 2
  error = capsys.readouterr().err
  assert error.startswith(f"launch: {argument}: ") and "refused" in error
  assert error.count("\n") == 1


def test_a_client_of_ray_cannot_be_reached(capsys):
  assert __main__.main(["--ray=ray://h:10001", "--workers=1", "--", "true"]) == 2
  assert "start it on a machine of the cluster" in capsys.readouterr().err
