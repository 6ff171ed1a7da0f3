"""One process of a cluster: started, watched, and its output shown after its name."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from replicator.processes import Child

# This many deaths of one worker within this many seconds are a crash loop, which ends the run.
MAX_DEATHS, DEATH_SECONDS = 3, 60.0
Event = tuple["Task | None", int]  # An ended process, its exit status; or None, a signal received.
_output_lock = threading.Lock()


class Task:
  """One process of the cluster, the leader of its own process group."""

  def __init__(self, command: Sequence[str], tf_config: dict):
    self.kind: str = tf_config["task"]["type"]  # 'chief', 'worker' or 'ps'.
    self.name = f"{self.kind} {tf_config['task']['index']}"  # 'worker 0'
    self._command, self._tf_config = command, tf_config
    self._deaths: list[float] = []
    self.child = self._start()
    self._waiter: threading.Thread | None = None

  def _start(self) -> Child:
    # gRPC would look for 127.0.0.1 behind a proxy that the user has set, and wait without end. It
    # reads these two names, in lower case.
    direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy")  # noqa: SIM112
    return Child(
        self._command, {"TF_CONFIG": json.dumps(self._tf_config),
                        "no_grpc_proxy": f"{direct},127.0.0.1" if direct else "127.0.0.1"},
        # As text, a '\r' ends a line too.
        stdout=subprocess.PIPE, encoding="utf-8", errors="surrogateescape")

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
