"""The processes of a run, which are threads here, find each other, or all say why not."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from replicator.errors import RunFailed, UsageError
from replicator.strategies.cluster import roll_call
from tests.programs.grpc_server import serving
from tests.programs.processes import free_addresses

import pytest


def config(addresses: list[str], index: int) -> dict:
  return {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}


@pytest.fixture
def said_by(monkeypatch) -> Callable[..., list[str]]:
  """Has processes attend together, each with its TF_CONFIG; returns the error of each, or ''."""
  monkeypatch.setattr(roll_call, "LATE_SECONDS", 1.0)

  def attend(one: dict, jobs: tuple[str, ...], seconds: float) -> str:
    try:
      roll_call.attend(one, jobs, seconds)
      return ""
    except (RunFailed, UsageError) as error:
      return f"{type(error).__name__}: {error}"

  def said_by(*configs: dict, jobs: tuple[str, ...] = ("worker",), seconds: float = 60.0
              ) -> list[str]:
    with ThreadPoolExecutor(len(configs)) as pool:
      return list(pool.map(lambda one: attend(one, jobs, seconds), configs))
  return said_by


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_all_find_each_other(said_by, host):
  addresses = free_addresses(3, host)
  assert said_by(*(config(addresses, index) for index in (2, 1, 0))) == ["", "", ""]
  for address in addresses:  # TensorFlow can listen there.
    socket.create_server(("", int(address.rpartition(":")[2]))).close()


@pytest.mark.parametrize("numbers", [(0, 1, 1), (0, 0, 1)])
def test_a_number_that_two_have_is_named_by_all(said_by, numbers):
  addresses = free_addresses(3)
  twice = numbers[1] if numbers[1] == numbers[2] else 0
  for said in said_by(*(config(addresses, number) for number in numbers)):
    assert said.startswith(f"RunFailed: worker {twice} ({addresses[twice]}) was started twice, as ")


def test_other_lists_of_processes_are_named_by_all(said_by):
  first, second, third = free_addresses(3)
  for said in said_by(config([first, second], 0), config([first, third], 1)):
    assert said == (f"RunFailed: worker 1 ({second}) trains with worker 0 ({first}), worker 1 "
                    f"({third}), but worker 0 ({first}) with worker 0 ({first}), worker 1 "
                    f"({second}); give all processes the same list")


def test_a_port_that_is_taken_is_named_by_all(said_by):
  addresses = free_addresses(2)
  with socket.create_server(("", int(addresses[1].rpartition(":")[2]))):
    said = said_by(config(addresses, 0), config(addresses, 1))
  for kind, each in zip(("RunFailed", "UsageError"), said, strict=True):
    assert each.startswith(f"{kind}: TF_CONFIG: worker 1 ({addresses[1]}) cannot listen: the port")


def test_who_is_missing_is_said_while_others_wait_and_at_the_end(said_by, capsys, monkeypatch):
  monkeypatch.setattr(roll_call, "QUIET_SECONDS", 0.1)
  addresses = free_addresses(3)
  late = "did not start within 1 seconds; start all processes"
  for said in said_by(config(addresses, 0), config(addresses, 2), seconds=1.0):
    assert said.startswith(f"RunFailed: worker 1 ({addresses[1]}) {late}")
  assert f"waiting for worker 1 ({addresses[1]})\n" in capsys.readouterr().err
  (said,) = said_by(config(addresses, 1), seconds=1.0)
  assert said.startswith(f"RunFailed: worker 0 ({addresses[0]}) {late}")
  assert (f"waiting for worker 0 ({addresses[0]}) (Connection refused)\n"
          in capsys.readouterr().err)


def test_a_first_process_that_does_not_reach_itself_says_so(said_by):
  (said,) = said_by(config(["no.such.host.invalid:1234", "127.0.0.1:1235"], 0), seconds=0.5)
  assert said.startswith("RunFailed: worker 0 (no.such.host.invalid:1234) cannot reach itself")


def test_one_that_has_gone_may_come_again(said_by):
  addresses = free_addresses(2)
  said: list[str] = []
  first = threading.Thread(target=lambda: said.extend(said_by(config(addresses, 0))))
  first.start()
  host, port = addresses[0].split(":")
  report = {"number": 1, "cluster": {"worker": addresses}, "id": "1", "process": "process 1"}
  for _ in range(100):
    try:
      with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"no report\n")
      with socket.create_connection((host, int(port))) as connection:
        connection.sendall(json.dumps(report).encode()[:20])  # It dies.
      break
    except ConnectionRefusedError:
      threading.Event().wait(0.05)
  assert said_by(config(addresses, 1)) == [""]
  first.join()
  assert said == [""]


def test_one_that_comes_when_the_run_has_begun_meets_tensorflow(said_by):
  (own,) = free_addresses(1)
  with serving() as port:
    assert said_by(config([f"127.0.0.1:{port}", own], 1)) == [""]


def test_servers_that_still_run_need_not_report_to_a_new_chief(said_by):
  with serving() as there:
    chief, worker = free_addresses(2)
    cluster = {"chief": [chief], "worker": [worker], "ps": [f"127.0.0.1:{there}"]}
    jobs = ("chief", "worker", "ps")
    configs = [{"cluster": cluster, "task": {"type": kind, "index": 0}} for kind in jobs[:2]]
    assert said_by(*configs, jobs=jobs) == ["", ""]
    (said,) = said_by(configs[0], jobs=jobs, seconds=1.0)
  assert said.startswith(f"RunFailed: worker 0 ({worker}) did not start within 1 seconds")


def test_whoever_does_not_listen_is_waited_for_and_named(capsys, monkeypatch):
  monkeypatch.setattr(roll_call, "QUIET_SECONDS", 0.1)
  with serving() as there, socket.create_server(("127.0.0.1", 0)) as stranger:
    address, silent = (f"127.0.0.1:{port}" for port in (there, stranger.getsockname()[1]))
    roll_call.await_listeners({"ps 0": address}, 60.0)
    with pytest.raises(RunFailed) as raised:
      roll_call.await_listeners({"ps 0": address, "worker 0": silent}, 1.5)
    assert str(raised.value) == (
        "worker 0 did not start within 1.5 seconds; start all processes of the run together, or "
        "increase Replicator.join_timeout")
    assert capsys.readouterr().err == "waiting for worker 0\n"

    def start() -> None:
      stranger.close()
      stack.enter_context(serving(int(silent.rpartition(":")[2])))

    with contextlib.ExitStack() as stack:
      threading.Timer(0.3, start).start()
      roll_call.await_listeners({"ps 0": address, "worker 0": silent}, 60.0)
