"""Processes on other machines: here other names of this one, with an ssh server of its own."""

import getpass
import os
import pathlib
import shutil
import signal
import subprocess
import threading

from replicator.tools import launch
from replicator.tools.launch import machines
from tests.programs.processes import ROOT, wait_until, wait_until_gone, wait_until_listens
from tests.replicator.tools.launch.clusters import SAVES, read_until, run, run_here, start

import pytest

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


def test_a_program_that_a_host_lacks_is_one_line_and_costs_no_restart(ssh, capfd):
  assert launch.launch(["no-such-program"], 1, max_restarts=3,
                       placement=machines.Machines(["127.0.0.1"], ssh)) == 2
  out, err = capfd.readouterr()
  assert out == "[worker 0] cannot run 'no-such-program': No such file or directory\n"
  assert err == "launch: worker 0 ended with status 2\n"


# ---- Machines that come and go ------------------------------------------------------------------


HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


@pytest.fixture
def run_on(tmp_path, monkeypatch):
  """Runs code on `least` hosts or more, behind a stand-in for ssh; the status.

  A host is away while there is a file of its name. Each process leaves a file with its process id,
  named by its host, its start and the size of the cluster.
  """
  monkeypatch.setattr(machines, "PROBE_SECONDS", 0.5)
  ssh = tmp_path / "ssh"
  ssh.write_text(f'#!/bin/sh\n[ -e {tmp_path}/$1 ] && echo "Permission denied" >&2 && exit 255\n'
                 'shift\nexec sh -c "$*"\n')
  ssh.chmod(0o755)
  leaves_a_file = f"""
folder = pathlib.Path({str(tmp_path)!r})
workers = config["cluster"]["worker"]
host = workers[config["task"]["index"]].partition(":")[0]
start = len(list(folder.glob(host + "-*"))) + 1
(folder / f"{{host}}-{{start}}-{{len(workers)}}").write_text(str(os.getpid()))
"""
  return lambda least, code="", **options: run_here(
      SAVES + leaves_a_file + code, len(HOSTS),
      placement=machines.Machines(HOSTS, str(ssh), least), **options)


def test_it_goes_on_without_a_machine_and_grows_when_it_is_back(run_on, tmp_path, capfd):
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
  status = run_on(1, "if len(workers) == 2 or start == 1: work()\n")
  thread.join()
  assert status == 0
  assert capfd.readouterr().err == (
      "launch: worker 2 ended with status 137; the others continue without 127.0.0.3\n"
      "launch: a machine is back; restarting all processes\n")
  assert {path.name for path in tmp_path.glob("127*-*")} == {
      *(f"{host}-1-3" for host in HOSTS), *(f"{host}-2-2" for host in HOSTS[:2]),
      *(f"{host}-3-3" for host in HOSTS[:2]), f"{HOSTS[2]}-2-3"}


def test_it_waits_for_the_least_number_and_begins_with_those_that_answer(
    run_on, tmp_path, capfd):
  for host in HOSTS[1:]:
    (tmp_path / host).touch()
  threading.Timer(1.0, (tmp_path / HOSTS[1]).unlink).start()
  assert run_on(2) == 0
  assert {path.name for path in tmp_path.glob("127*-*")} == {f"{host}-1-2" for host in HOSTS[:2]}
  assert capfd.readouterr().err == (
      "launch: waiting for 127.0.0.2 (Permission denied), 127.0.0.3 (Permission denied)\n")


def test_an_answer_that_is_no_text_is_an_answer(tmp_path):
  ssh = tmp_path / "ssh"
  ssh.write_bytes(b"#!/bin/sh\necho '\xfc' >&2\n")
  ssh.chmod(0o755)
  with machines.Machines(HOSTS, str(ssh), 1).slots(3, lambda: False, pytest.fail) as slots:
    assert len(slots) == len(HOSTS)


def test_a_program_that_reaches_no_machine_is_named(ssh):
  status, _, err = run(["--hosts=127.0.0.1", "--ssh=no-such-ssh"], "work()")
  assert status == 2 and "cannot run 'no-such-ssh': No such file" in err


def test_a_crash_on_a_machine_that_answers_counts_as_a_restart(run_on, capfd):
  assert run_on(1, "sys.exit(7 * (host == '127.0.0.2'))", max_restarts=1) == 7
  assert capfd.readouterr().err == (
      "launch: worker 1 ended with status 7; restart 1 of 1\n"
      "launch: worker 1 ended with status 7\n")


def test_an_address_of_version_6_gets_its_brackets():
  with machines.Machines(["me@fd00::1", "n2"]).slots(2, lambda: False, lambda: None) as slots:
    assert [slot.address.rpartition(":")[0] for slot in slots] == ["[fd00::1]", "n2"]
