"""The processes of a cluster start together, end together, and have one exit status.

They are on this machine, or on others that ssh reaches.
"""

import contextlib
import itertools
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.errors import PREEMPTED_STATUS, USAGE_STATUS, UsageError
from replicator.launch.machines import Machines
from replicator.launch.remote import RemoteChild
from replicator.processes import GRACE_SECONDS, Child, stop_signals

# A signal this soon after the first is the same one, sent to this process and to its group.
SAME_SIGNAL_SECONDS = 1.0
# This many deaths of one worker within this many seconds are a crash loop, which ends the run.
MAX_DEATHS, DEATH_SECONDS = 3, 60.0
# An ended process, its exit status; or None, a signal received; or None, `BACK`.
Event = tuple["Task | None", int]
BACK = -1   # Instead of a signal: a machine that was away answers.
GROWS = -1  # Instead of an exit status: all processes have saved, to start on more machines.
_output_lock = threading.Lock()


class Task:
  """One process of the cluster, the leader of its own process group, here or on another host."""

  def __init__(self, command: Sequence[str], tf_config: dict, host: str = "", ssh: str = "ssh"):
    self.kind: str = tf_config["task"]["type"]  # 'chief', 'worker' or 'ps'.
    self.name = f"{self.kind} {tf_config['task']['index']}"  # 'worker 0'
    self._command, self._tf_config = command, tf_config
    self._host, self._ssh = host, ssh
    self._deaths: list[float] = []
    self.child = self._start()
    self._waiter: threading.Thread | None = None

  def _start(self) -> Child:
    environment = {"TF_CONFIG": json.dumps(self._tf_config)}
    # As text, a '\r' ends a line too.
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "encoding": "utf-8",
                              "errors": "surrogateescape"}
    if self._host:
      return RemoteChild(self._host, self._ssh, self._command, environment, **output)
    return Child(self._command, environment, **output)

  def start_again(self, events: "queue.SimpleQueue[Event]") -> bool:
    """Starts and watches the process again, unless it died too often; returns whether it did."""
    now = time.monotonic()
    self._deaths = [t for t in self._deaths if t > now - DEATH_SECONDS] + [now]
    if len(self._deaths) >= MAX_DEATHS:
      return False
    self.child = self._start()
    self.watch(events)
    return True

  def watch(self, events: "queue.SimpleQueue[Event]") -> None:
    """Shows the output from now on; puts `(self, exit status)` into `events` at the end."""
    reader = threading.Thread(target=self._show_output, daemon=True)

    def wait() -> None:
      status = self.child.process.wait()
      self.child.send_signal(signal.SIGKILL)  # Ends what it left running in the background.
      reader.join(timeout=1)                  # Its last lines are shown before its end is reported.
      events.put((self, status if status >= 0 else 128 - status))

    self._waiter = threading.Thread(target=wait, daemon=True)
    reader.start()
    self._waiter.start()

  def end(self, deadline: float) -> None:
    """Waits for the end of the process until `deadline`, on the monotonic clock; then kills it."""
    self.child.end(deadline)
    if self._waiter is not None:
      self._waiter.join()

  def _show_output(self) -> None:
    assert self.child.process.stdout is not None
    with self.child.process.stdout as lines:
      for line in lines:
        text = f"[{self.name}] {line.rstrip()}\n".encode(errors="surrogateescape")
        with _output_lock:
          try:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
          except BrokenPipeError:  # The reader has gone (`| head`): end as if asked to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            os.kill(os.getpid(), signal.SIGTERM)


def launch(command: Sequence[str], workers: int, ps: int = 0, max_restarts: int = 0,
           hosts: Sequence[str] = (), ssh: str = "ssh", least: int | None = None) -> int:
  """Starts the cluster, shows its output, and ends it; returns the exit status.

  The processes are dealt to `hosts`, as `ssh` knows them; without any, all are on this machine.
  With `least`, one worker is on each host that answers, if so many do. The run goes on without a
  host that is lost, from the last checkpoint, and with it when it is back.
  Call it in the main thread: it handles SIGINT and SIGTERM while the cluster runs.

  Raises:
    UsageError: the system cannot run the command.
  """
  events: queue.SimpleQueue[Event] = queue.SimpleQueue()
  machines = Machines(hosts, ssh, least)
  signals: list[int] = []

  def receive(number: int) -> None:
    signals.append(number)
    events.put((None, number))

  try:
    with stop_signals(receive):
      restart = 0
      while True:
        present = machines.present(lambda: bool(signals))
        if signals:  # No process runs, and the same command resumes.
          return PREEMPTED_STATUS
        while not events.empty():
          events.get()  # They are about the processes before.
        with machines.awaited(present, lambda: events.put((None, BACK))):
          count = len(present) if machines.is_elastic else workers
          status, culprit = _run(command, count, ps, present, ssh, events)
        if culprit is None and status != GROWS:
          return status
        if culprit is None:
          _say("a machine is back; all start again")
          continue
        away = machines.away(present)
        restart += not away
        again = restart <= max_restarts and status != USAGE_STATUS
        _report(culprit, status,
                f"; the others go on without {', '.join(away)}" if away
                else f"; restart {restart} of {max_restarts}" if again else "")
        if not again:
          return status
  except OSError as error:
    raise UsageError(f"cannot run '{command[0]}': {error.strerror}.") from error


def tf_configs(workers: int, ps: int = 0, hosts: Sequence[str] = ()) -> list[dict]:
  """The TF_CONFIG of every process, the chief's first, with ports that are free here.

  The processes are dealt to `hosts`, which may say `user@host`; without any, all are on 127.0.0.1.
  """
  sizes = {"chief": 1, "worker": workers, "ps": ps} if ps else {"worker": workers}
  names = itertools.cycle([host.rpartition("@")[2] for host in hosts] or ["127.0.0.1"])
  addresses = zip(names, _free_ports(sum(sizes.values())), strict=False)
  cluster = {kind: ["{}:{}".format(*next(addresses)) for _ in range(n)]
             for kind, n in sizes.items()}
  return [{"cluster": cluster, "task": {"type": kind, "index": index}}
          for kind, addresses in cluster.items() for index in range(len(addresses))]


def _free_ports(count: int) -> Iterator[int]:
  # Linux numbers outgoing connections from 32768 on: one of those could take a higher port in the
  # seconds that a process needs to import TensorFlow and listen.
  with contextlib.ExitStack() as held:
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(12000, 32768), k=20000):
      if len(ports) == count:
        break
      candidate = held.enter_context(socket.socket())
      with contextlib.suppress(OSError):
        candidate.bind(("127.0.0.1", port))
        ports.append(port)
  return iter(ports)


def _run(command: Sequence[str], workers: int, ps: int, hosts: Sequence[str], ssh: str,
         events: "queue.SimpleQueue[Event]") -> tuple[int, Task | None]:
  """Runs the cluster once; returns its status, and the process whose death ended it."""
  tasks: list[Task] = []
  try:
    # All processes fork before the first thread starts.
    for index, tf_config in enumerate(tf_configs(workers, ps, hosts)):
      tasks.append(Task(command, tf_config, hosts[index % len(hosts)] if hosts else "", ssh))
    for task in tasks:
      task.watch(events)
    return _supervise(tasks, events, has_chief=ps > 0)
  finally:
    _end(tasks)


def _supervise(tasks: list[Task], events: "queue.SimpleQueue[Event]", has_chief: bool
               ) -> tuple[int, Task | None]:
  """Returns as soon as the exit status of the cluster is known, with the process that died.

  A process that fails after a signal did not die: it was asked to end, and failed to save.
  """
  # A chief decides alone: the others serve until they are ended, and hold the variables that the
  # chief saves when a signal asks it to end, so they must outlive it.
  deciding = tasks[:1] if has_chief else list(tasks)
  signalled_at: float | None = None
  preempted = grows = False
  while deciding:
    task, number = events.get()
    if task is None and number == BACK:
      grows = True
      for other in deciding:
        other.child.send_signal(signal.SIGTERM)
    elif task is None:
      if signalled_at:
        if time.monotonic() < signalled_at + SAME_SIGNAL_SECONDS:
          continue
        return 128 + number, None
      signalled_at = time.monotonic()
      for other in deciding:
        other.child.send_signal(number)
    elif grows and number == 128 + signal.SIGTERM:
      deciding.remove(task)  # It had nothing to save yet.
      preempted = True
    elif number not in (0, PREEMPTED_STATUS) or (number and task not in deciding):
      if (has_chief and task.kind == "worker" and number != USAGE_STATUS
          and task.start_again(events)):
        _report(task, number, ", and was started again")
      elif signalled_at:
        _report(task, number)
        return number, None
      else:
        return number, task
    elif task in deciding:
      deciding.remove(task)
      if number == PREEMPTED_STATUS:
        preempted = True
        if not (signalled_at or grows):  # Only this process was asked to stop; the others need it.
          events.put((None, signal.SIGTERM))
  if preempted and grows and not signalled_at:
    return GROWS, None
  return PREEMPTED_STATUS if preempted else 0, None


def _report(task: Task, status: int, and_then: str = "") -> None:
  _say(f"{task.name} ended with status {status}{and_then}")


def _say(line: str) -> None:
  print(f"launch: {line}", file=sys.stderr, flush=True)


def _end(tasks: list[Task]) -> None:
  """Asks all processes to end, and kills those that take longer than `GRACE_SECONDS`."""
  for task in tasks:
    if task.child.process.poll() is None:
      task.child.send_signal(signal.SIGTERM)
  deadline = time.monotonic() + GRACE_SECONDS
  for task in tasks:
    task.end(deadline)
