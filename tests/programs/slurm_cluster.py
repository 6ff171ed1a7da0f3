"""A real Slurm cluster of two nodes on this machine."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

HOSTS = pathlib.Path("/etc/hosts")
NAMES = "127.0.0.1 replica1 replica2\n"
PACKAGES = ("slurmctld", "slurmd", "slurm-client")  # Of Debian and Ubuntu.
# The nodes are daemons of one machine, without systemd and cgroups. A job of the partition 'high'
# preempts those of 'low'. The scheduler looks for a place each two seconds, not each minute.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=replica[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=1
PartitionName=low Nodes=replica[1-2] Default=YES PriorityTier=1 State=UP
PartitionName=high Nodes=replica[1-2] PriorityTier=10 State=UP PreemptMode=OFF
"""


def missing() -> str:
  """The reason why no cluster can run here; installs Slurm if that is allowed."""
  if os.geteuid() != 0 or not os.access(HOSTS, os.W_OK):
    return "only root can name the nodes in /etc/hosts"
  if shutil.which("slurmctld") is None and shutil.which("apt-get"):
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
      with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["apt-get", "-qq", *words], capture_output=True, env=environment,
                       timeout=120)
  return "" if shutil.which("slurmctld") else "Slurm is not installed, and cannot be"


@contextlib.contextmanager
def running(folder: pathlib.Path, port: int) -> Iterator[None]:
  """A cluster that keeps its files in `folder` and listens at `port` and the two after it.

  There is one at a time on a machine.
  """
  with pathlib.Path("/tmp/replicator-slurm.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "state").mkdir(parents=True)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(folder=folder, port=port, first=port + 1, last=port + 2))
    before = HOSTS.read_text()
    HOSTS.write_text(before + NAMES)
    os.environ["SLURM_CONF"] = str(configuration)
    daemons = [subprocess.Popen(words) for words in (
        ["slurmctld", "-D"], *(["slurmd", "-D", "-N", f"replica{i}"] for i in (1, 2)))]
    try:
      deadline = time.monotonic() + 60.0
      while said("sinfo", "--noheader", "--format=%T %D", "--partition=low") != "idle 2":
        if time.monotonic() > deadline:
          pytest.skip("the daemons of Slurm do not run on this machine")
        time.sleep(0.2)
      yield
    finally:
      said("scancel", "--user=root", "--signal=KILL", "--full")
      time.sleep(1)
      for daemon in daemons:
        daemon.terminate()
      for daemon in daemons:
        daemon.wait(timeout=60)
      del os.environ["SLURM_CONF"]
      HOSTS.write_text(before)


def await_end(job: str) -> None:
  """Waits until a job has left the queue."""
  while said("squeue", "--noheader", f"--jobs={job}"):
    time.sleep(0.5)


def said(*words: str) -> str:
  """The output of a command."""
  return subprocess.run(words, capture_output=True, text=True).stdout.strip()
