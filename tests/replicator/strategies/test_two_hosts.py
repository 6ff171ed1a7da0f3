"""Hosts with a network between them: network namespaces with veth pairs, which needs root."""

import contextlib
import os
import shutil
import subprocess

import pytest

from tests.programs.forks import in_a_fork
from tests.programs.logs import rows
from tests.programs.workers import ended, has_logged, running

NAMES = tuple(f"replica{os.getpid()}-{i}" for i in (1, 2, 3))  # Other test processes have theirs.
ADDRESSES = ("10.77.0.1:2222", "10.77.0.2:2223")


def ip(words: str) -> None:
  subprocess.run(["ip", *words.split()], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts():
  if os.geteuid() != 0 or shutil.which("ip") is None:
    pytest.skip("only root can make network namespaces, with iproute2")
  with contextlib.ExitStack() as stack:
    try:  # The third host has a link to the first one.
      for name in NAMES:
        ip(f"netns add {name}")
        stack.callback(ip, f"netns delete {name}")
        ip(f"-n {name} link set lo up")
      for network, other in (("10.77", 1), ("10.79", 2)):
        link, there = f"link{other}", f"link{other + 1}0"
        ip(f"link add {link} netns {NAMES[0]} type veth peer name {there} netns {NAMES[other]}")
        for name, end, host in ((NAMES[0], link, 1), (NAMES[other], there, 2)):
          ip(f"-n {name} address add {network}.0.{host}/24 dev {end}")
          ip(f"-n {name} link set {end} up")
      ip(f"-n {NAMES[2]} route add 10.77.0.0/24 via 10.79.0.1")
    except subprocess.CalledProcessError as error:
      pytest.skip(f"no network namespaces on this machine: {error.stderr!r}")
    yield NAMES


@pytest.mark.slow
@in_a_fork
def test_each_side_of_a_cut_link_names_the_other_and_the_run_resumes(hosts, tmp_path):
  settings = ["train.global_batch_size = 4", "train.checkpoint_every = 5",
              "Replicator.worker_timeout = 4.0"]

  def start(steps: int):
    each = [*settings, f"train.steps = {steps}"]
    return running(tmp_path, each, each, addresses=ADDRESSES, hosts=hosts)

  with start(10 ** 7) as (first, second):
    has_logged(tmp_path, 12)
    ip(f"-n {hosts[0]} link set link1 down")
    try:
      for worker, other in ((first, 1), (second, 0)):
        assert ended(worker, 1) == [
            f"error: worker {other} ({ADDRESSES[other]}) does not answer; start all processes "
            "again to resume from the last checkpoint"]
    finally:
      ip(f"-n {hosts[0]} link set link1 up")
  steps = rows(tmp_path)[-1]["step"] + 5
  with start(steps) as workers:
    for worker in workers:
      assert ended(worker, 0) == []
  assert [row["step"] for row in rows(tmp_path)] == list(range(1, steps + 1))


@pytest.mark.slow
@in_a_fork
def test_a_second_worker_of_a_number_on_another_host_ends_all(hosts, tmp_path):
  each = ["train.global_batch_size = 4", "train.steps = 10_000_000",
          "Replicator.join_timeout = 5.0"]
  with running(tmp_path, each, each, addresses=ADDRESSES, hosts=hosts) as (first, second):
    has_logged(tmp_path, 5)
    with running(tmp_path, None, each, addresses=ADDRESSES, hosts=hosts[1:]) as (third,):
      twice = (f"error: worker 1 ({ADDRESSES[1]}) was started twice; start each process of the run "
               "once, and all again, to resume from the last checkpoint")
      assert ended(first, 1) == [twice]
      # The others may only see that worker 0 has ended.
      for worker in (second, third):
        [line] = ended(worker, 1)
        assert line == twice or line.startswith(f"error: worker 0 ({ADDRESSES[0]})")
