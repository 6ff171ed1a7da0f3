"""Hosts with a network between them: network namespaces with veth pairs, which needs root."""

import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys

from replicator.app import config
from replicator.tools.launch import __main__
from tests.programs import two_networks
from tests.programs.forks import in_a_fork
from tests.programs.logs import rows
from tests.programs.processes import ROOT
from tests.programs.workers import SETTINGS, ended, enter, has_logged, running

import pytest
import yaml

NAMES = tuple(f"replica{os.getpid()}-{i}" for i in (1, 2, 3))  # Other test processes have theirs.
ADDRESSES = ("10.77.0.1:2222", "10.77.0.2:2223")
FAR = ("10.78.0.1:2222", "10.78.0.2:2223")  # The same two, each far from the other.
ONE_WAY = 0.005  # Seconds.
FLOAT64 = ["train.steps = 20", "train.global_batch_size = 4", "train.precision = 'float64'"]


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


@contextlib.contextmanager
def far_apart(hosts):
  """Each host has both addresses of FAR: the other's is that of a proxy, which passes on late."""
  proxies = []
  for name in hosts[:2]:
    for address in FAR:
      ip(f"-n {name} address add {address.partition(':')[0]}/32 dev lo")
  for host, at, to in ((hosts[0], FAR[1], ADDRESSES[1]), (hosts[1], FAR[0], ADDRESSES[0])):
    proxies.append(subprocess.Popen(
        [sys.executable, "-m", "tests.programs.delaying_proxy", at, to, str(ONE_WAY)],
        preexec_fn=functools.partial(enter, host)))
  try:
    yield
  finally:
    for proxy in proxies:
      proxy.kill()
      proxy.wait()


@pytest.mark.slow
@in_a_fork
def test_they_train_as_one_process_does_however_far_they_are(hosts, tmp_path):
  with far_apart(hosts), running(tmp_path / "two", FLOAT64, FLOAT64, addresses=FAR, hosts=hosts,
                                 command=["tests.programs.two_networks"]) as workers:
    for worker in workers:
      assert ended(worker, 0) == []
  equals_one_process(tmp_path)


def equals_one_process(folder: pathlib.Path) -> None:
  """The run in the folder 'two' logged what one process does."""
  config.parse([], [*FLOAT64, *SETTINGS, "Replicator.strategy = 'one_device'"])
  two_networks.two_networks(str(folder / "one"))
  for row, wanted in zip(rows(folder / "two"), rows(folder / "one"), strict=True):
    assert row == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
@in_a_fork
def test_the_containers_of_a_manifest_train_in_two_pods(hosts, tmp_path):
  file = tmp_path / "train.yaml"
  assert __main__.main(
      ["--workers=2", f"--kubernetes={file}", "--image=registry/image:1",
       f"--volume=shared:{tmp_path}", "--", sys.executable,
       "-m", "tests.programs.two_networks", f"--workdir={tmp_path / 'two'}",
       *(f"--gin_param={each}" for each in [*FLOAT64, *SETTINGS])]) == 0
  job = yaml.safe_load(file.read_text())["spec"]["replicatedJobs"][0]["template"]["spec"]
  (container,) = job["template"]["spec"]["containers"]
  variables = {each["name"]: each["value"] for each in container["env"]}
  names = dict(zip(("10.77.0.1", "10.77.0.2"), variables["REPLICATOR_HOSTS"].split(","),
                   strict=True))
  with contextlib.ExitStack() as stack:
    pods = []
    for index, host in enumerate(hosts[:2]):
      etc = pathlib.Path("/etc/netns", host)  # What `ip netns exec` shows as /etc.
      etc.mkdir(parents=True)
      stack.callback(shutil.rmtree, etc)
      (etc / "hosts").write_text("".join(f"{each} {name}\n" for each, name in names.items()))
      pods.append(stack.enter_context(subprocess.Popen(
          ["ip", "netns", "exec", host, *container["command"]], cwd=ROOT, text=True,
          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
          env={**os.environ, **variables, "JOB_COMPLETION_INDEX": str(index)})))
      stack.callback(pods[-1].kill)
    for pod in pods:
      assert ended(pod, 0) == []
  equals_one_process(tmp_path)


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
            f"error: worker {other} ({ADDRESSES[other]}) is not responding; restart all "
            "processes to resume from the last checkpoint"]
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
      twice = (f"error: worker 1 ({ADDRESSES[1]}) was started twice; restart all processes of the "
               "run, each only once, to resume from the last checkpoint")
      lines = [line for worker in (first, second, third) for line in ended(worker, 1)]
      # Some may only see that another one has ended.
      ends = tuple(f"error: worker {number} ({ADDRESSES[number]})" for number in (0, 1))
      assert len(lines) == 3 and twice in lines and all(line.startswith(ends) for line in lines)
