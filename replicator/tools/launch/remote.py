"""A process on another machine, which gets signals and ends with this one.

Neither ssh nor an agent passes on signals. So the other machine runs `main`, which starts the
command, reads numbers of signals from its standard input, and stops the command when that input
ends.
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

# It does not wait for the thread that reads.
_PROGRAM = f"import os, sys; from {__name__} import main; os._exit(main(sys.argv[1:]))"
_HANDED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")  # The variables of this process that it gets.


def shell_line(command: Sequence[str], environment: Mapping[str, str]) -> str:
  """A line for a shell of another machine: it runs `main` in the folder of this one's name."""
  here = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
  variables = [f"{name}={value}" for name, value in {**here, **environment}.items()]
  there = shlex.join(["env", *variables, sys.executable, "-c", _PROGRAM, *command])
  return f"cd {shlex.quote(os.getcwd())} && exec {there}"


class RemoteChild(PipedChild):
  """A command on the machine that ssh knows as `host`; `ssh` has the words that start ssh."""

  def __init__(self, host: str, ssh: str, command: Sequence[str], environment: Mapping[str, str]):
    super().__init__([*shlex.split(ssh), host, shell_line(command, environment)], {},
                     stdin=subprocess.PIPE)

  def send_signal(self, number: int) -> None:
    """Sends a signal to the process; SIGKILL ends the connection, too."""
    assert self.process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
      self.process.stdin.write(f"{number}\n")
      self.process.stdin.flush()
    if number == signal.SIGKILL:
      super().send_signal(number)

  def end(self, deadline: float) -> None:
    """Waits for the end of the process until `deadline`, on the monotonic clock; then kills it."""
    super().end(deadline)
    assert self.process.stdin is not None
    with contextlib.suppress(OSError):
      self.process.stdin.close()


def main(command: Sequence[str]) -> int:
  """Runs a command as the other machine's part; returns its status, or 128 + n after signal n.

  A command that this machine cannot run prints one line and has the status of a bad command line.
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
    child.send_signal(signal.SIGTERM)  # The connection has ended.
    time.sleep(GRACE_SECONDS)
    child.send_signal(signal.SIGKILL)

  threading.Thread(target=obey, daemon=True).start()
  status = child.wait()
  child.send_signal(signal.SIGKILL)  # Ends what it left running in the background.
  return status
