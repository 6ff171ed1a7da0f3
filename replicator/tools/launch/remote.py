"""A process on another machine, which gets this process's signals and ends with it.

Neither ssh nor an agent forwards signals. So the other machine runs `main`, which starts the
command, reads signal numbers from its standard input, and stops the command when that input ends.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from replicator.errors import USAGE_STATUS
from replicator.processes import GRACE_SECONDS, Child
from replicator.tools.launch.placement import PipedChild

# `_exit` does not wait for the reading thread.
_PROGRAM = f"import os, sys; from {__name__} import main; os._exit(main(sys.argv[1:]))"
_HANDED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")  # Environment variables to copy.


def shell_line(command: Sequence[str], environment: Mapping[str, str]) -> str:
  """Returns a shell line for another machine, which runs `main` in a folder with this one's path.
  """
  here = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
  variables = [f"{name}={value}" for name, value in {**here, **environment}.items()]
  there = shlex.join(["env", *variables, sys.executable, "-c", _PROGRAM, *command])
  return f"cd {shlex.quote(os.getcwd())} && exec {there}"


class RemoteChild(PipedChild):
  """A command on the machine `host`, reached with the command `ssh`."""

  def __init__(self, host: str, ssh: str, command: Sequence[str], environment: Mapping[str, str]):
    super().__init__([*shlex.split(ssh), host, shell_line(command, environment)], {},
                     stdin=subprocess.PIPE)

  def send_signal(self, number: int) -> None:
    """Sends a signal to the process; SIGKILL also ends the connection."""
    assert self.process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
      self.process.stdin.write(f"{number:d}\n")
      self.process.stdin.flush()
    if number == signal.SIGKILL:
      super().send_signal(number)

  def end(self, deadline: float) -> None:
    """Waits for the process to end until `deadline`, on the monotonic clock; then kills it."""
    super().end(deadline)
    assert self.process.stdin is not None
    with contextlib.suppress(OSError):
      self.process.stdin.close()


def main(command: Sequence[str]) -> int:
  """Runs a command, on the other machine; returns its status, or 128 + n after signal n.

  If the command cannot run, prints one line and returns the status of a bad command line.
  """
  try:
    child = Child(command, {})
  except OSError as error:
    print(f"cannot run '{error.filename or command[0]}': {error.strerror}", flush=True)
    return USAGE_STATUS

  def obey() -> None:
    with contextlib.suppress(OSError):
      for line in sys.stdin:
        child.send_signal(int(line))
    child.send_signal(signal.SIGTERM)  # The connection ended.
    time.sleep(GRACE_SECONDS)
    child.send_signal(signal.SIGKILL)

  threading.Thread(target=obey, daemon=True).start()
  status = child.wait()
  child.send_signal(signal.SIGKILL)  # Ends its leftover background processes.
  return status
