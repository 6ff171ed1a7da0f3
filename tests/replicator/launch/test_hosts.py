"""Processes on other machines: here two names of this one, with an ssh server of its own."""

import getpass
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from replicator import launch
from tests.programs.processes import ROOT, wait_until_gone, wait_until_listens
from tests.replicator.launch.clusters import SAVES, read_until, run, start

SERVER = """\
ListenAddress 127.0.0.1
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
"""
CLIENT = ("ssh -p {port} -i {folder}/key -o StrictHostKeyChecking=no "
          "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes")


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
  """The words that start ssh; without a server, they run what ssh would send to a shell."""
  folder = tmp_path_factory.mktemp("ssh")
  sshd = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
  if sshd is None or shutil.which("ssh") is None or os.geteuid() != 0:
    (folder / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    (folder / "ssh").chmod(0o755)
    yield str(folder / "ssh")
    return
  subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
  (folder / "config").write_text(SERVER.format(folder=folder))
  pathlib.Path("/run/sshd").mkdir(exist_ok=True)
  (port,) = launch.free_ports(1)
  with subprocess.Popen([sshd, "-D", "-f", folder / "config", "-p", str(port)]) as server:
    try:
      wait_until_listens(port)
      yield CLIENT.format(port=port, folder=folder)
    finally:
      server.terminate()


def options(ssh: str) -> list[str]:
  return [f"--hosts={getpass.getuser()}@127.0.0.1,localhost", f"--ssh={ssh}"]


def test_each_host_has_a_process_in_this_folder_and_the_status_comes_back(ssh, tmp_path):
  status, lines, err = run(options(ssh), f"""
print(me, os.getcwd(), [a.partition(":")[0] for a in config["cluster"]["worker"]])
print("to stderr", file=sys.stderr)
touch({str(tmp_path)!r} + "/" + me)
for other in ("worker0", "worker1"): wait_for({str(tmp_path)!r} + "/" + other)
sys.exit(7 * (me == "worker1"))
""")
  assert status == 7 and "launch: worker 1 ended with status 7" in err
  for index in (0, 1):
    assert f"[worker {index}] worker{index} {ROOT} ['127.0.0.1', 'localhost']" in lines
    assert f"[worker {index}] to stderr" in lines


def test_all_save_when_the_launcher_is_asked_to_stop(ssh):
  status, lines, _ = run(options(ssh), SAVES + "print('ready', flush=True)\nwork()",
                         "[worker 0] ready", "[worker 1] ready")
  assert status == 42
  assert lines.count(f"[worker 0] saved {int(signal.SIGTERM)}") == 1
  assert lines.count(f"[worker 1] saved {int(signal.SIGTERM)}") == 1


def test_all_end_when_the_launcher_is_killed(ssh, tmp_path):
  process = start(options(ssh), f"""
pathlib.Path({str(tmp_path)!r}, me).write_text(str(os.getpid()))
print("ready", flush=True)
work()
""")
  read_until(process, {"[worker 0] ready", "[worker 1] ready"})
  process.kill()
  process.communicate()
  for index in (0, 1):
    wait_until_gone(int((tmp_path / f"worker{index}").read_text()))


def test_a_host_that_cannot_be_reached_is_named(ssh):
  status, lines, err = run(["--hosts=127.0.0.1", "--ssh=ssh -o BatchMode=yes -p 1"], "work()")
  if shutil.which("ssh"):
    assert status == 255 and "launch: worker 0 ended with status 255" in err
    assert any("onnection refused" in line for line in lines)
  else:
    assert status == 2 and "cannot run 'ssh'" in err
