"""Starts and ends the processes of a cluster together, with one exit status.

A `Placement` decides where they run. If one process ends, that decides what happens to the others.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence

from replicator.errors import PREEMPTED_STATUS, USAGE_STATUS, UsageError
from replicator.processes import GRACE_SECONDS, stop_signals
from replicator.strategies.cluster.managers import Processes
from replicator.tools.launch.machines import Machines
from replicator.tools.launch.placement import Placement, Process, Slot, say

# A signal this soon after the first is the same one, sent both to this process and to its group.
SAME_SIGNAL_SECONDS = 1.0
# If one worker dies this often within this many seconds, the crash loop ends the run.
MAX_DEATHS, DEATH_SECONDS = 3, 60.0
# A process that ended and its exit status; or None and a received signal; or None and `BACK`.
Event = tuple["Task | None", int]
BACK = -1   # Instead of a signal: a missing machine is back.
GROWS = -1  # Instead of an exit status: all processes have saved, to restart on more machines.
_output_lock = threading.Lock()


class Task:
  """One process of the cluster, which leads its own process group, here or on another host."""

  def __init__(self, command: Sequence[str], tf_config: dict, slot: Slot):
    self.kind: str = tf_config["task"]["type"]  # 'chief', 'worker' or 'ps'.
    self.name = f"{self.kind} {tf_config['task']['index']}"  # 'worker 0'
    self._command, self._tf_config, self._slot = command, tf_config, slot
    self._deaths: list[float] = []
    self.child = self._start()
    self._waiter: threading.Thread | None = None

  @property
  def is_running(self) -> bool:
    """Whether the process may still be running."""
    return self._waiter is None or self._waiter.is_alive()

  def _start(self) -> Process:
    return self._slot.start(self._command, {"TF_CONFIG": json.dumps(self._tf_config)})

  def start_again(self, events: "queue.SimpleQueue[Event]") -> bool:
    """Restarts and watches the process; returns False if it died too often or its place is lost."""
    now = time.monotonic()
    self._deaths = [t for t in self._deaths if t > now - DEATH_SECONDS] + [now]
    if len(self._deaths) >= MAX_DEATHS or self.child.lost:
      return False
    self.child = self._start()
    self.watch(events)
    return True

  def watch(self, events: "queue.SimpleQueue[Event]") -> None:
    """Shows the output; puts `(self, exit status)` into `events` when the process ends."""
    reader = threading.Thread(target=self._show_output, daemon=True)

    def wait() -> None:
      status = self.child.wait()
      self.child.send_signal(signal.SIGKILL)  # Ends its leftover background processes.
      reader.join(timeout=1)                  # Shows its last lines before its end is reported.
      events.put((self, status))

    self._waiter = threading.Thread(target=wait, daemon=True)
    reader.start()
    self._waiter.start()

  def end(self, deadline: float) -> None:
    """Waits for the process to end until `deadline`, on the monotonic clock; then kills it."""
    self.child.end(deadline)
    if self._waiter is not None:
      self._waiter.join()

  def _show_output(self) -> None:
    for line in self.child.lines():
      text = f"[{self.name}] {line.rstrip()}\n".encode(errors="surrogateescape")
      with _output_lock:
        try:
          sys.stdout.buffer.write(text)
          sys.stdout.buffer.flush()
        except BrokenPipeError:  # The reader is gone (`| head`): end as if asked to.
          os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
          os.kill(os.getpid(), signal.SIGTERM)


def launch(command: Sequence[str], workers: int, ps: int = 0, max_restarts: int = 0,
           placement: Placement | None = None) -> int:
  """Starts the cluster, shows its output, and ends it; returns the exit status.

  The processes run in the slots of `placement`, by default on this machine. An elastic run
  continues without a lost machine, from the last checkpoint, and uses it again when it is back.
  Call it in the main thread: it handles SIGINT and SIGTERM while the cluster runs.

  Raises:
    UsageError: the system cannot run the command.
    RunFailed: there are no slots.
  """
  events: queue.SimpleQueue[Event] = queue.SimpleQueue()
  places = placement or Machines()
  count = workers + ps + bool(ps)
  signals: list[int] = []

  def receive(number: int) -> None:
    signals.append(number)
    events.put((None, number))

  try:
    with stop_signals(receive):
      restart = 0
      while True:
        while not events.empty():
          events.get()  # These are from earlier processes.
        with places.slots(count, lambda: bool(signals), lambda: events.put((None, BACK))) as slots:
          if signals:  # Nothing is running, and the same command resumes.
            return PREEMPTED_STATUS
          status, culprit = _run(command, ps, slots, events)
        if culprit is None and status != GROWS:
          return status
        if culprit is None:
          say("a machine is back; restarting all processes")
          continue
        away = places.away()
        restart += not away
        again = restart <= max_restarts and status != USAGE_STATUS
        _report(culprit, status,
                f"; the others continue without {', '.join(away)}" if away
                else f"; restart {restart} of {max_restarts}" if again else "")
        if not again:
          return status
  except OSError as error:
    name = error.filename or command[0]
    raise UsageError(f"cannot run '{name}': {error.strerror}.") from error


def tf_configs(addresses: Sequence[str], ps: int = 0) -> list[dict]:
  """Returns the TF_CONFIG of the process at each address, the chief's first."""
  return [Processes([*addresses], rank, "").tf_config(ps or None)
          for rank in range(len(addresses))]


def _run(command: Sequence[str], ps: int, slots: Sequence[Slot],
         events: "queue.SimpleQueue[Event]") -> tuple[int, Task | None]:
  """Runs the cluster once; returns its status, and the process whose failure ended it."""
  tasks: list[Task] = []
  try:
    configs = tf_configs([slot.address for slot in slots], ps)
    # All processes fork before the first thread starts.
    for slot, tf_config in zip(slots, configs, strict=True):
      tasks.append(Task(command, tf_config, slot))
    for task in tasks:
      task.watch(events)
    status, culprit = _supervise(tasks, events, has_chief=ps > 0)
  finally:
    for task in tasks:
      if task.is_running:
        task.child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for task in tasks:
      task.end(deadline)
  # A process that notices a lost one may end before the launcher notices the loss.
  lost = [task for task in tasks if task.child.lost]
  return status, lost[0] if culprit and lost else culprit


def _supervise(tasks: list[Task], events: "queue.SimpleQueue[Event]", has_chief: bool
               ) -> tuple[int, Task | None]:
  """Returns the exit status of the cluster as soon as it is known, with the process that died.

  A process that fails after a signal does not count as dead: it was asked to end, and failed to
  save.
  """
  # If there is a chief, it alone decides. The others serve until they are ended, and hold the
  # variables that the chief saves when a signal asks it to end, so they must outlive it.
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
        # If the run grows, the processes already got SIGTERM; Ctrl-C would count as a second one.
        other.child.send_signal(signal.SIGTERM if grows else number)
    elif grows and number == 128 + signal.SIGTERM:
      deciding.remove(task)  # It had nothing to save.
      preempted = True
    elif number not in (0, PREEMPTED_STATUS) or (number and task not in deciding):
      if (has_chief and task.kind == "worker" and number != USAGE_STATUS
          and task.start_again(events)):
        _report(task, number, ", and was restarted")
      elif signalled_at:
        _report(task, number)
        return number, None
      else:
        return number, task
    elif task in deciding:
      deciding.remove(task)
      if number == PREEMPTED_STATUS:
        preempted = True
        if not (signalled_at or grows):  # The others still need this process.
          events.put((None, signal.SIGTERM))
  if preempted and grows and not signalled_at:
    return GROWS, None
  return PREEMPTED_STATUS if preempted else 0, None


def _report(task: Task, status: int, and_then: str = "") -> None:
  lost = task.child.lost
  say(f"{task.name} " + (f"was lost: {lost}" if lost else f"ended with status {status}") + and_then)
