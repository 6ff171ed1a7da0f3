"""Starts all processes of a cluster on this machine: `python -m replicator.launch`.

  python -m replicator.launch --workers=2 -- python -m experiments.sngan ...
  python -m replicator.launch --workers=2 --ps=1 -- python -m experiments.sngan ...

Without `--ps` the cluster is `{"worker": [...]}`, for the strategy `multi_worker_mirrored`. With
`--ps` it is `{"chief": [one], "worker": [...], "ps": [...]}`, for `parameter_server`.
Each process finds its own place in the environment variable TF_CONFIG, as it would under a cluster
manager, and each line that it prints appears here behind its name: `[worker 0] step 200/5000`.

With `--ps` a worker that dies, however, is started again and joins the run; the chief gave its step
to another. When the same one dies for the third time within a minute, the run ends.

With `--max_restarts=N` a run that ends because a process died is started again as a whole, up to N
times: all processes end, and the same command resumes from the last checkpoint, on new ports.

Exit status: 0 when every worker (with `--ps`: the chief) ended with 0; else the first failing
status, 128 + n for a process that signal n ended; 2 for a bad command line; 42 when a SIGINT or
SIGTERM, which is passed on, made the processes save and end. A second signal ends those that do
not, as when a signal finds them waiting for each other. Status 2 is never started again, as it will
be no better next time, and nothing is after a signal.
"""

import argparse
import contextlib
import ctypes
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from replicator.errors import PREEMPTED_STATUS, UsageError, nearest

GRACE_SECONDS = 10.0
"""How long a process may take to end by itself, when the cluster is given up."""
MAX_DEATHS, DEATH_SECONDS = 3, 60.0
"""So many deaths of one worker within so many seconds are a crash loop, which ends the run."""
SAME_SIGNAL_SECONDS = 1.0
"""A signal that follows the first one sooner is the same, sent to this process and to its group."""

USAGE_STATUS = 2
"""Of a bad command line or configuration."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_output_lock = threading.Lock()

_Event = tuple["Task | None", int]  # A task and its exit status, or None and a signal received.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  try:
    workers, ps, max_restarts, command = parse(sys.argv[1:] if argv is None else argv)
    return launch(command, workers, ps, max_restarts)
  except UsageError as error:
    print(f"launch: {error}", file=sys.stderr)
    return 2


def parse(argv: Sequence[str]) -> tuple[int, int, int, list[str]]:
  """`["--workers=2", "--ps=1", "--max_restarts=3", "--", "python"] -> 2, 1, 3, ["python"]`.

  Raises:
    UsageError: an unknown option, a number out of range, no command, a command not found.
  """
  split = list(argv).index("--") if "--" in argv else len(argv)
  options, command = list(argv[:split]), list(argv[split + 1:])
  parser = _Parser(prog="python -m replicator.launch", allow_abbrev=False,
                   usage="%(prog)s --workers=N [--ps=P] [--max_restarts=R] -- COMMAND ...",
                   description="Starts all processes of a cluster on this machine.")
  parser.add_argument("--workers", type=int, required=True,
                      help="number of workers; with --ps, those besides the chief")
  parser.add_argument("--ps", type=int, default=0,
                      help="number of parameter servers; adds a chief, which coordinates")
  parser.add_argument("--max_restarts", type=int, default=0,
                      help="how often to start all again, from the last checkpoint")
  flags, unknown = parser.parse_known_args(options)
  if unknown:
    hint = nearest(unknown[0].split("=")[0], ["--workers", "--ps", "--max_restarts"])
    raise UsageError(f"unknown argument '{unknown[0]}'.{hint} The command goes after '--'.")
  if flags.workers < 1:
    raise UsageError(f"--workers={flags.workers}: a cluster needs at least --workers=1.")
  if flags.ps < 0:
    raise UsageError(f"--ps={flags.ps}: write the number of parameter servers, or leave --ps out.")
  if flags.max_restarts < 0:
    raise UsageError(f"--max_restarts={flags.max_restarts}: write how often to start again, "
                     "or leave it out.")
  if not command:
    raise UsageError("no command to start: write it after '--', as in "
                     "'python -m replicator.launch --workers=2 -- python -m experiments.sngan'.")
  if shutil.which(command[0]) is None:
    raise UsageError(f"cannot run '{command[0]}': no such program; after '--', write the command "
                     "as you would type it in a shell.")
  return flags.workers, flags.ps, flags.max_restarts, command


class _Parser(argparse.ArgumentParser):
  """Tells a bad command line in one line, as the rest of the library does."""

  def error(self, message: str) -> NoReturn:
    raise UsageError(f"{message}; usage: {self.format_usage().removeprefix('usage: ').strip()}")


def tf_configs(workers: int, ps: int = 0) -> list[dict]:
  """The TF_CONFIG of every process, the chief's first, on free ports of 127.0.0.1."""
  sizes = {"chief": 1, "worker": workers, "ps": ps} if ps else {"worker": workers}
  ports = _free_ports(sum(sizes.values()))
  cluster = {kind: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for kind, n in sizes.items()}
  return [{"cluster": cluster, "task": {"type": kind, "index": index}}
          for kind, addresses in cluster.items() for index in range(len(addresses))]


def _free_ports(count: int) -> Iterator[int]:
  # Below 32768, where Linux starts to number outgoing connections: one of those could otherwise
  # take the port in the seconds that a process needs to import TensorFlow and listen.
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


class Task:
  """One process of the cluster, the leader of its own process group."""

  def __init__(self, command: Sequence[str], tf_config: dict):
    self.kind: str = tf_config["task"]["type"]
    self.name = f"{self.kind} {tf_config['task']['index']}"
    self._command, self._tf_config = command, tf_config
    self._deaths: list[float] = []
    self.process = self._start()
    self.waiter: threading.Thread | None = None

  def _start(self) -> subprocess.Popen:
    return subprocess.Popen(
      self._command, env=_environment(self._tf_config),
      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      encoding="utf-8", errors="surrogateescape",  # As text, a '\r' ends a line too.
      start_new_session=True, preexec_fn=_die_with(os.getpid()))

  def start_again(self, events: "queue.SimpleQueue[_Event]") -> bool:
    """Starts and watches the process anew, unless it has died too often of late.

    It forks beside running threads, which is safe: the child calls no more than `prctl`.
    """
    now = time.monotonic()
    self._deaths = [t for t in self._deaths if t > now - DEATH_SECONDS] + [now]
    if len(self._deaths) >= MAX_DEATHS:
      return False
    self.process = self._start()
    self.watch(events)
    return True

  def watch(self, events: "queue.SimpleQueue[_Event]") -> None:
    """From now on shows the output; puts `(self, exit status)` into `events` at the end."""
    reader = threading.Thread(target=self._show_output, daemon=True)

    def wait() -> None:
      status = self.process.wait()
      self.signal_group(signal.SIGKILL)  # What it left running in the background.
      reader.join(timeout=1)             # Its last words come before the news of its end.
      events.put((self, status if status >= 0 else 128 - status))

    self.waiter = threading.Thread(target=wait, daemon=True)
    reader.start()
    self.waiter.start()

  def signal_group(self, number: int) -> None:
    """Sends signal `number` to the process and to all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(self.process.pid, number)

  def _show_output(self) -> None:
    assert self.process.stdout is not None
    with self.process.stdout as lines:
      for line in lines:
        text = f"[{self.name}] {line.rstrip()}\n".encode(errors="surrogateescape")
        with _output_lock:
          try:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
          except BrokenPipeError:  # Nobody reads any more (`| head`): end as when asked to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            os.kill(os.getpid(), signal.SIGTERM)


def _environment(tf_config: dict) -> dict[str, str]:
  # gRPC would look for 127.0.0.1 behind a proxy that the user has set, and wait for ever. It
  # reads these two names, in lower case.
  direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy")  # noqa: SIM112
  return {**os.environ,
          "TF_CONFIG": json.dumps(tf_config),
          "PYTHONUNBUFFERED": "1",
          "no_grpc_proxy": f"{direct},127.0.0.1" if direct else "127.0.0.1"}


def _die_with(parent: int) -> Callable[[], None] | None:
  """A function for the new process: Linux shall kill it when the launcher dies, however."""
  if _libc is None:
    return None

  def in_child() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The launcher was gone before the line above.
      os._exit(1)
  return in_child


def launch(command: Sequence[str], workers: int, ps: int = 0, max_restarts: int = 0) -> int:
  """Starts the cluster, shows its output, ends it as one; returns the exit status.

  Call it in the main thread: it handles SIGINT and SIGTERM while the cluster runs.
  """
  events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
  forward = lambda number, frame: events.put((None, number))
  previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    for restart in range(1, max_restarts + 2):
      status, culprit = _run(command, workers, ps, events)
      if culprit is None:
        return status
      again = restart <= max_restarts and status != USAGE_STATUS
      _tell(culprit, status, f"; restart {restart} of {max_restarts}" if again else "")
      if not again:
        return status
      if _signalled(events):
        return PREEMPTED_STATUS  # All is ended, and the same command resumes.
    raise AssertionError("the last run returned")
  except OSError as error:
    raise UsageError(f"cannot run '{command[0]}': {error.strerror}.") from error
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def _run(command: Sequence[str], workers: int, ps: int, events: "queue.SimpleQueue[_Event]"
         ) -> tuple[int, Task | None]:
  """Runs the cluster once; returns its status, and the process whose death ended it."""
  tasks: list[Task] = []
  try:
    for tf_config in tf_configs(workers, ps):  # All of them before the first thread: they fork.
      tasks.append(Task(command, tf_config))
    for task in tasks:
      task.watch(events)
    return _supervise(tasks, events, has_chief=ps > 0)
  finally:
    _end(tasks)


def _supervise(tasks: list[Task], events: "queue.SimpleQueue[_Event]", has_chief: bool
               ) -> tuple[int, Task | None]:
  """Returns as soon as the cluster's exit status is known; with it the process that died.

  One that dies after a signal did not die: it was asked to end, and failed to save.
  """
  # With a chief it alone decides: the others serve forever, and hold the variables that the
  # chief saves when a signal asks it to end, so they must outlive it.
  deciding = tasks[:1] if has_chief else list(tasks)
  told_at: float | None = None
  preempted = False
  while deciding:
    task, number = events.get()
    if task is None:
      if told_at:
        if time.monotonic() < told_at + SAME_SIGNAL_SECONDS:
          continue
        return 128 + number, None
      told_at = time.monotonic()
      for other in deciding:
        other.signal_group(number)
    elif number not in (0, PREEMPTED_STATUS) or (number and task not in deciding):
      if (has_chief and task.kind == "worker" and number != USAGE_STATUS
          and task.start_again(events)):
        _tell(task, number, ", and was started again")
      elif told_at:
        _tell(task, number)
        return number, None
      else:
        return number, task
    elif task in deciding:
      deciding.remove(task)
      if number == PREEMPTED_STATUS:
        preempted = True
        if not told_at:  # Somebody told this one alone; it cannot go on without the others.
          events.put((None, signal.SIGTERM))
  return PREEMPTED_STATUS if preempted else 0, None


def _tell(task: Task, status: int, and_then: str = "") -> None:
  print(f"launch: {task.name} ended with status {status}{and_then}", file=sys.stderr, flush=True)


def _signalled(events: "queue.SimpleQueue[_Event]") -> bool:
  """Whether a signal came; forgets all events, whose processes have ended."""
  found = False
  while not events.empty():
    task, _ = events.get()
    found |= task is None
  return found


def _end(tasks: list[Task]) -> None:
  for task in tasks:
    if task.process.poll() is None:
      task.signal_group(signal.SIGTERM)
  deadline = time.monotonic() + GRACE_SECONDS
  for task in tasks:
    try:
      task.process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      task.signal_group(signal.SIGKILL)
      task.process.wait()
    if task.waiter is not None:
      task.waiter.join()


if __name__ == "__main__":
  sys.exit(main())
