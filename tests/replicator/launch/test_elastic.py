"""A run on machines that come and go: here addresses of this one, behind a stand-in for ssh."""

import os
import pathlib
import signal
import threading

import pytest

from replicator.launch import machines
from tests.programs.processes import wait_until
from tests.replicator.launch.clusters import SAVES, run_here

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


@pytest.fixture
def ssh(tmp_path, monkeypatch) -> str:
  """The words that start the stand-in. A host is away while there is a file of its name."""
  monkeypatch.setattr(machines, "PROBE_SECONDS", 0.5)
  script = tmp_path / "ssh"
  script.write_text(f'#!/bin/sh\n[ -e {tmp_path}/$1 ] && exit 255\nshift\nexec sh -c "$*"\n')
  script.chmod(0o755)
  return str(script)


def code(folder: pathlib.Path) -> str:
  """Each process leaves a file with its process id, named by its host, its start and the size."""
  return SAVES + f"""
folder = pathlib.Path({str(folder)!r})
workers = config["cluster"]["worker"]
host = workers[config["task"]["index"]].partition(":")[0]
start = len(list(folder.glob(host + "-*"))) + 1
(folder / f"{{host}}-{{start}}-{{len(workers)}}").write_text(str(os.getpid()))
"""


def test_it_goes_on_without_a_machine_and_grows_when_it_is_back(ssh, tmp_path, capfd):
  third = tmp_path / HOSTS[2]

  def come_and_go() -> None:
    started = [tmp_path / f"{host}-1-3" for host in HOSTS]
    wait_until(lambda: all(file.exists() and file.read_text() for file in started))
    third.touch()
    os.kill(int(started[2].read_text()), signal.SIGKILL)
    for host in HOSTS[:2]:  # Two go on.
      wait_until((tmp_path / f"{host}-2-2").exists)
    third.unlink()

  thread = threading.Thread(target=come_and_go)
  thread.start()
  program = code(tmp_path) + "if len(workers) == 2 or start == 1: work()\n"
  status = run_here(program, workers=3, placement=machines.Machines(HOSTS, ssh, least=1))
  thread.join()
  assert status == 0
  assert capfd.readouterr().err == (
      "launch: worker 2 ended with status 137; the others go on without 127.0.0.3\n"
      "launch: a machine is back; all start again\n")
  assert {path.name for path in tmp_path.glob("127*-*")} == {
      *(f"{host}-1-3" for host in HOSTS), *(f"{host}-2-2" for host in HOSTS[:2]),
      *(f"{host}-3-3" for host in HOSTS[:2]), f"{HOSTS[2]}-2-3"}


def test_it_waits_for_the_least_number_and_begins_with_those_that_answer(ssh, tmp_path):
  for host in HOSTS[1:]:
    (tmp_path / host).touch()
  threading.Timer(1.0, (tmp_path / HOSTS[1]).unlink).start()
  assert run_here(code(tmp_path), workers=3, placement=machines.Machines(HOSTS, ssh, least=2)) == 0
  assert {path.name for path in tmp_path.glob("127*-*")} == {f"{host}-1-2" for host in HOSTS[:2]}


def test_a_crash_on_a_machine_that_answers_counts_as_a_restart(ssh, tmp_path, capfd):
  program = code(tmp_path) + "sys.exit(7 * (host == '127.0.0.2'))"
  assert run_here(program, workers=3, max_restarts=1,
                  placement=machines.Machines(HOSTS, ssh, least=1)) == 7
  assert capfd.readouterr().err == (
      "launch: worker 1 ended with status 7; restart 1 of 1\n"
      "launch: worker 1 ended with status 7\n")
