"""Two hosts with a network between them: network namespaces with a veth pair, which needs root."""

import contextlib
import os
import shutil
import subprocess

import pytest

from replicator.app import config
from tests.programs import two_networks
from tests.programs.logs import rows
from tests.programs.workers import SETTINGS, ended, has_logged, running

NAMES = tuple(f"replica{os.getpid()}-{i}" for i in (1, 2))  # Other test processes have theirs.
ADDRESSES = ("10.77.0.1:2222", "10.77.0.2:2222")
PREFIXES = [["ip", "netns", "exec", name] for name in NAMES]
FLOAT64 = ["train.steps = 20", "train.global_batch_size = 4", "train.precision = 'float64'"]


def ip(words: str) -> None:
  subprocess.run(["ip", *words.split()], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts():
  if os.geteuid() != 0 or shutil.which("ip") is None:
    pytest.skip("only root can make network namespaces, with iproute2")
  with contextlib.ExitStack() as stack:
    try:
      for name in NAMES:
        ip(f"netns add {name}")
        stack.callback(ip, f"netns delete {name}")
      ip(f"link add link1 netns {NAMES[0]} type veth peer name link2 netns {NAMES[1]}")
      for index, name in enumerate(NAMES, 1):
        ip(f"-n {name} address add 10.77.0.{index}/24 dev link{index}")
        ip(f"-n {name} link set link{index} up")
        ip(f"-n {name} link set lo up")
    except subprocess.CalledProcessError as error:
      pytest.skip(f"no network namespaces on this machine: {error.stderr!r}")
    yield


@pytest.mark.slow
def test_they_train_as_one_process_does(hosts, tmp_path):
  with running(tmp_path / "two", FLOAT64, FLOAT64, addresses=ADDRESSES, prefixes=PREFIXES,
               command=["tests.programs.two_networks"]) as workers:
    for worker in workers:
      assert ended(worker, 0) == []
  config.parse([], [*FLOAT64, *SETTINGS, "Replicator.strategy = 'one_device'"])
  two_networks.two_networks(str(tmp_path / "one"))
  for row, wanted in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
    assert row == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_each_side_of_a_cut_link_names_the_other_and_the_run_resumes(hosts, tmp_path):
  settings = ["train.global_batch_size = 4", "train.checkpoint_every = 5",
              "Replicator.worker_timeout = 4.0"]

  def start(steps: int):
    each = [*settings, f"train.steps = {steps}"]
    return running(tmp_path, each, each, addresses=ADDRESSES, prefixes=PREFIXES)

  with start(10 ** 7) as (first, second):
    has_logged(tmp_path, 12)
    ip(f"-n {NAMES[0]} link set link1 down")
    try:
      for worker, other in ((first, 1), (second, 0)):
        assert ended(worker, 1) == [
            f"error: worker {other} ({ADDRESSES[other]}) does not answer; start all processes "
            "again to resume from the last checkpoint"]
    finally:
      ip(f"-n {NAMES[0]} link set link1 up")
  steps = rows(tmp_path)[-1]["step"] + 5
  with start(steps) as workers:
    for worker in workers:
      assert ended(worker, 0) == []
  assert [row["step"] for row in rows(tmp_path)] == list(range(1, steps + 1))
