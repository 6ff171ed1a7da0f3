"""The roll call: checks that all processes of a run are there before TensorFlow connects them.

Every process, including the first, reports to the first process, at the address where TensorFlow
will listen later. If two processes have the same number, their process lists differ, or a port is
taken, all of them fail at once. With TensorFlow alone, they would wait until a timeout.
"""

import contextlib
import json
import os
import platform
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from replicator.errors import RunFailed, UsageError
from replicator.strategies.cluster import lost

QUIET_SECONDS = 5.0  # Before the first message about missing processes.
_NOTICE_SECONDS = 30.0  # Between such messages.
_BEAT_SECONDS = 1.0  # Between answers to a waiting process.
_SILENCE_SECONDS = 5.0  # After this long without data, the other side is considered gone.
LATE_SECONDS = 5.0  # How long latecomers can still get the reason for a refusal.
_LONGEST = 2 ** 20  # Maximum size of a report, in bytes.


def attend(config: Mapping[str, Any], jobs: Sequence[str], seconds: float) -> None:
  """Waits until all processes of the `jobs` in TF_CONFIG have reported to the first one.

  Parameter servers and their workers may still be running when a new chief starts, so they also
  count if they listen. After `QUIET_SECONDS`, prints which processes are missing.

  Raises:
    UsageError: this process's port is taken.
    RunFailed: some processes are still missing after `seconds`; two have the same number; their
      clusters differ; or another process's port is taken.
  """
  cluster, task = config["cluster"], config["task"]
  names, addresses = zip(*lost.processes(cluster, jobs).items(), strict=True)
  number = names.index(lost.shown(cluster, task["type"], task["index"]))
  own, first = addresses[number], addresses[0]
  report = {"number": number, "cluster": cluster, "id": secrets.token_hex(8),
            "process": f"process {os.getpid()} on {platform.node()}"}
  running = _listening(addresses) if number == 0 and "ps" in jobs else []
  with contextlib.ExitStack() as stack:
    try:
      server = stack.enter_context(_Server(int(own.rpartition(":")[2]), report, jobs, running))
    except OSError:
      report["fault"] = lost.port_taken(names[number])
    else:
      if number == 0:
        stack.enter_context(server.answering())
      else:  # TensorFlow will listen there.
        stack.close()
    _report(report, names, first, seconds)


def _report(report: Mapping[str, Any], names: Sequence[str], address: str, seconds: float) -> None:
  """Reports to the first process until all processes are there; raises as `attend` does."""
  fault, is_first = report.get("fault"), report["number"] == 0
  begun = time.monotonic()
  notice, end = begun + QUIET_SECONDS, begun + (min(seconds, LATE_SECONDS) if fault else seconds)
  missing, reason = list(names[:1]), ""
  while time.monotonic() < end:
    try:
      for answer in _answers(report, address):
        if "refusal" in answer:
          raise (UsageError if answer["refusal"] == fault else RunFailed)(answer["refusal"])
        missing, reason = answer["missing"], ""
        if not missing:
          return
        if time.monotonic() > end:
          break
        if is_first and time.monotonic() > notice:
          notice = _say(missing)
    except OSError as error:
      missing, reason = list(names[:1]), error.strerror or str(error)
    if fault and is_first:  # The port is not taken by a process of this run.
      break
    if time.monotonic() > notice:
      notice = _say(missing, reason)
    time.sleep(0.2)
  if fault:
    raise UsageError(fault)
  if is_first and missing == [names[0]]:
    raise RunFailed(f"{names[0]} cannot reach itself at this address ({reason or 'no answer'}); "
                    "choose one that all machines can reach")
  raise lost.late(", ".join(missing), seconds)


def _listening(addresses: Sequence[str]) -> list[int]:
  """Returns the numbers of the processes at which TensorFlow listens."""
  with ThreadPoolExecutor(min(len(addresses), 64)) as pool:
    return [number for number, listens in enumerate(pool.map(lost.listens, addresses)) if listens]


def await_listeners(addresses: Mapping[str, str], seconds: float) -> None:
  """Waits until TensorFlow listens at all addresses, by the names of their processes.

  TensorFlow itself would wait for them forever, and cannot be interrupted. After `QUIET_SECONDS`,
  prints which ones are missing.

  Raises:
    RunFailed: some are still missing after `seconds`.
  """
  begun = time.monotonic()
  notice, missing = begun + QUIET_SECONDS, list(addresses)
  while missing := [name for name in missing if not lost.listens(addresses[name])]:
    if time.monotonic() > begun + seconds:
      raise lost.late(", ".join(missing), seconds)
    if time.monotonic() > notice:
      notice = _say(missing)
    time.sleep(0.2)


def _say(missing: list[str], reason: str = "") -> float:
  """Prints who is missing; returns when to print next."""
  print(f"waiting for {', '.join(missing)}{f' ({reason})' if reason else ''}", file=sys.stderr,
        flush=True)
  return time.monotonic() + _NOTICE_SECONDS


def _answers(report: Mapping[str, Any], address: str) -> Iterator[dict]:
  """Yields the first process's answers; raises an OSError if it cannot be reached or is gone."""
  host, _, port = address.rpartition(":")
  with socket.create_connection((host.strip("[]"), int(port)), _SILENCE_SECONDS) as connection:
    connection.sendall(json.dumps(report).encode() + b"\n")
    is_tensorflow = connection.recv(1, socket.MSG_PEEK) == b"\0"  # See `lost.listens`.
    if is_tensorflow:  # The run has begun, and TensorFlow says what this process is to it.
      yield {"missing": []}
      return
    with connection.makefile("rb") as lines:
      for line in lines:
        try:
          yield json.loads(line)
        except ValueError as error:
          raise OSError(f"another program is listening at {address}") from error


# ---- In the first process -----------------------------------------------------------------------


class _Handler(socketserver.StreamRequestHandler):
  """Handler that answers one process for as long as it waits."""

  timeout = _SILENCE_SECONDS
  server: "_Server"

  def handle(self) -> None:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # A stranger, or gone.
      report = json.loads(self.rfile.readline(_LONGEST))
      for answer in self.server.answers(report):
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
  """Server that tracks which processes have reported; raises an OSError if the port is taken."""

  allow_reuse_address = True
  address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

  def __init__(self, port: int, own: Mapping[str, Any], jobs: Sequence[str],
               running: Sequence[int]):
    self._own, self._jobs = own, jobs
    self._running = running  # The numbers of processes that need not report.
    self._names = list(lost.processes(own["cluster"], jobs))
    self._present: dict[int, dict] = {}  # Reports by process number.
    self._refusal = ""
    self._changed = threading.Condition()
    super().__init__(("", port), _Handler)

  def server_bind(self) -> None:
    """Binds the port for IPv4 as well."""
    if self.address_family == socket.AF_INET6:
      self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    super().server_bind()

  @contextlib.contextmanager
  def answering(self) -> Iterator[None]:
    """Answers while the body runs, and a while longer after a refusal."""
    thread = threading.Thread(target=self.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
      yield
    finally:
      with self._changed:
        self._changed.wait_for(lambda: not self._refusal or not self._missing(), LATE_SECONDS)
      self.shutdown()

  def answers(self, report: dict) -> Iterator[dict]:
    """Yields which processes are missing until none is, or why the run cannot start."""
    number, own = report["number"], report["id"]
    with self._changed:
      self._refusal = self._refusal or self._fault_of(report)
      self._present.setdefault(number, report)
      self._changed.notify_all()
    try:
      is_over = False
      while not is_over:
        with self._changed:
          answer = {"refusal": self._refusal} if self._refusal else {"missing": self._missing()}
          is_over = not answer.get("missing")
        yield answer
        with self._changed:
          if not is_over:
            self._changed.wait(_BEAT_SECONDS)
    finally:
      with self._changed:
        if not is_over and self._present[number]["id"] == own:  # It is gone, but may come back.
          del self._present[number]

  def _fault_of(self, report: dict) -> str:
    name = self._names[report["number"]]
    # A second process with this number may report before this one does.
    is_own = report["number"] == self._own["number"]
    other = self._own if is_own else self._present.get(report["number"])
    if other and other["id"] != report["id"]:
      return (f"{name} was started twice, as {other['process']} and as {report['process']}; start "
              "each process of the run only once, with its own number")
    if report["cluster"] != self._own["cluster"]:
      return (f"{name} trains with "
              f"{', '.join(lost.processes(report['cluster'], self._jobs))}, but "
              f"{self._names[0]} with {', '.join(self._names)}; give all processes the same list")
    return report.get("fault", "")

  def _missing(self) -> list[str]:
    return [name for number, name in enumerate(self._names)
            if number not in self._present and number not in self._running]
