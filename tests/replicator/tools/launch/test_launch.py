"""The launcher: what its processes get, what it shows of them, and its command line."""

import socket

from replicator.tools import launch
from replicator.tools.launch import __main__
from tests.programs.processes import free_addresses
from tests.replicator.tools.launch.clusters import run_here

import pytest


def test_parameter_servers_add_a_chief_and_ports_are_free():
  configs = launch.tf_configs(free_addresses(4), ps=1)
  assert [(c["task"]["type"], c["task"]["index"]) for c in configs] == [
    ("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
  cluster = configs[0]["cluster"]
  assert {kind: len(addresses) for kind, addresses in cluster.items()} == {
    "chief": 1, "worker": 2, "ps": 1}
  assert all(c["cluster"] == cluster for c in configs)
  addresses = {address for each in cluster.values() for address in each}
  assert len(addresses) == 4
  for host, port in (address.split(":") for address in addresses):
    assert 12000 <= int(port) < 32768  # Below those of outgoing connections.
    with socket.socket() as listener:
      listener.bind((host, int(port)))


@pytest.mark.parametrize("flags, workers, least", [
  (["--hosts=a,b,c"], 3, None), (["--hosts=a,b,c", "--workers=2:3"], 3, 2),
  (["--hosts=a,b", "--workers=4"], 4, None), (["--workers=2"], 2, None)])
def test_only_a_range_of_workers_makes_a_run_elastic(flags, workers, least):
  parsed = __main__.parsed([*flags, "--", "true"])
  assert (parsed.workers, parsed.least) == (workers, least)


def test_both_streams_are_shown_line_by_line_after_the_name_with_all_bytes(capfdbinary):
  assert run_here(r"""
print("one")
print("two", file=sys.stderr)
sys.stdout.buffer.write(b"10 %\r\xc3\xa9 \xff\r\nno newline at the end")
""", workers=1) == 0
  assert capfdbinary.readouterr().out.splitlines() == [b"[worker 0] " + line for line in (
      b"one", b"two", b"10 %", b"\xc3\xa9 \xff", b"no newline at the end")]


@pytest.mark.parametrize("argv, message", [
  (["--workers=2"], "required: command; usage: replicator launch --workers=N"),
  (["--workers=0", "--", "true"], "--workers=0: must be at least 1"),
  (["--workers=2", "--ps=-1", "--", "true"], "--ps=-1: must be at least 0"),
  (["--workers=2", "--max_restarts=-1", "--", "true"], "--max_restarts=-1: must be at least 0"),
  (["--workers=2", "--max_restart=1", "--", "true"], "[--max_restarts=R] -- COMMAND ..."),
  (["--", "true"], "add --workers=N or --hosts=A,B"),
  (["--hosts=a,,b", "--", "true"], "--hosts=a,,b: has an empty name"),
  (["--hosts=a", "--spark=local", "--", "true"], "use only one of --hosts, --spark, --ray, "),
  (["--workers=2", "sh", "-c", "true"], "arguments: -c true; usage: "),
  (["--workers=2", "--", "no-such-program"], "cannot run 'no-such-program': No such file"),
])
def test_a_bad_command_line_is_one_line_of_error(argv, message, capsys):
  assert __main__.main(argv) == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.startswith("launch: ") and error.count("\n") == 1


def test_everything_after_the_dashes_is_the_command(capfd):
  assert __main__.main(["--workers=1", "--", "printf", "%s ", "--", "--ps=3"]) == 0
  assert capfd.readouterr().out == "[worker 0] -- --ps=3\n"
