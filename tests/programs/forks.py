"""Python programs as forks of one process that has imported TensorFlow, which takes seconds.

`run` is `subprocess.run` of such a fork. Where it starts this Python itself, as a launcher starts
its workers, the new process is a fork of the fork. TensorFlow has computed nothing in any process
that is forked. All end with the process that called `run`. Their pages have no curves.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import itertools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from replicator.processes import end_with_parent

_ROOT = pathlib.Path(__file__).parents[2]

# What a program must import itself: gin has a state, and knows the modules of the project.
_OWN = ("benchmarks", "experiments", "gin", "models", "replicator", "tests")
# But TensorFlow knows a gradient of one room, and the curves of reports are replaced.
_KEPT = ("replicator.internals", "replicator.training.workdir.charts")
# What programs import besides.
_OTHERS = ("jinja2", "matplotlib.figure", "numpy", "optuna", "scipy.special", "sklearn.datasets",
           "tensorboard.plugins.hparams.summary_v2", "tensorboard.summary")
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def run(words: Sequence[str], cwd: pathlib.Path, env: Mapping[str, str], timeout: float
        ) -> subprocess.CompletedProcess:
  """Runs `python WORDS` until it ends; where this is not Linux, in a process that is no fork."""
  if sys.platform != "linux":
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, timeout=timeout, check=False,
                          capture_output=True, text=True)
  server = _server()
  assert server.stdin and server.stdout
  with tempfile.TemporaryDirectory() as folder:
    files = [f"{folder}/stdout", f"{folder}/stderr"]
    print(json.dumps([words, str(cwd), dict(env), files]), file=server.stdin, flush=True)
    alarm = threading.Timer(timeout, server.terminate)  # Its forks end with it.
    alarm.start()
    try:
      line = server.stdout.readline()
    finally:
      alarm.cancel()
    assert line, f"the server of forks has ended, or {words} took more than {timeout} seconds"
    texts = []
    for name in files:
      with open(name, encoding="utf-8", errors="replace") as file:
        texts.append(file.read())
  return subprocess.CompletedProcess(list(words), int(line), *texts)


def in_a_fork(test: Callable[..., None]) -> Callable[..., None]:
  """Makes a test run in a fork, so that the programs that it starts are forks, too."""
  @functools.wraps(test)
  def run_it(**arguments: object) -> None:
    code = (f"from pathlib import PosixPath\nfrom {test.__module__} import {test.__name__}\n"
            f"{test.__name__}.__wrapped__(**{arguments!r})")
    done = run(["-c", code], _ROOT, {**os.environ, "PYTHONPATH": str(_ROOT)}, 900.0)
    assert done.returncode == 0, done.stdout + done.stderr
  return run_it


@functools.cache
def _server() -> subprocess.Popen:
  """The process that is forked; it ends with this process, or when it gets SIGTERM."""
  server = subprocess.Popen([sys.executable, "-m", __name__], cwd=_ROOT, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                            preexec_fn=end_with_parent(signal.SIGTERM))
  atexit.register(server.communicate)
  atexit.register(server.terminate)  # Runs first.
  return server


def _serve() -> None:
  """Runs each command that comes, and prints its exit status."""
  # What loses its parent becomes a child of this process, which can end it.
  ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
  signal.signal(signal.SIGTERM, lambda number, frame: (_end_all(), os._exit(1)))
  import tensorflow  # noqa: F401
  for name in _OTHERS:
    importlib.import_module(name)
  from replicator.training.workdir import charts
  charts.curves = lambda *arguments: "<svg></svg>"  # To draw them takes longer than most runs.
  for line in sys.stdin:
    words, folder, environment, files = json.loads(line)
    ends_with_this = end_with_parent()
    child = os.fork()
    if not child:
      ends_with_this()
      for number, file in enumerate([os.devnull, *files]):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
      os.chdir(folder)
      _become(words, environment)
    ended, status = 0, 0
    while ended != child:
      ended, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)


def _end_all() -> None:
  """Ends all children of this process, and theirs, which become its own."""
  children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
  with contextlib.suppress(ChildProcessError):  # There is none.
    while True:
      for child in children.read_text().split():
        with contextlib.suppress(ProcessLookupError):
          os.kill(int(child), signal.SIGKILL)
      os.wait()


class _ForkingPopen(subprocess.Popen):
  """Forks this process where Python would start again to run a program."""

  def __init__(self, args, *others: Any, **options: Any):
    # A thread of TensorFlow may hold a lock, which would stay locked in the fork. Python's own
    # threads end there, and what they lock is made again.
    is_safe = len(os.listdir("/proc/self/task")) == threading.active_count()
    if (isinstance(args, (list, tuple)) and args[0] == sys.executable and is_safe
        and (args[1] in ("-m", "-c") or not str(args[1]).startswith("-"))):
      # The new process calls the function in place of `exec`, and the function does not return.
      options["preexec_fn"] = functools.partial(
          _become, [str(word) for word in args[1:]], options.get("env"),
          options.get("preexec_fn"), options.get("pass_fds", ()))
    super().__init__(args, *others, **options)


def _become(words: Sequence[str], environment: Mapping[str, str] | None,
            prepare: Callable[[], object] | None = None, kept: Iterable[int] = ()) -> None:
  """Makes this fork what `python WORDS` is, and ends it; it keeps some files open."""
  status = 1
  try:
    gc.enable()  # `subprocess` has disabled it.
    ends = [2, *sorted(kept), 1024]
    for last, following in itertools.pairwise(ends):
      os.closerange(last + 1, following)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for number, handler in ((signal.SIGINT, signal.default_int_handler),
                            (signal.SIGTERM, signal.SIG_DFL), (signal.SIGPIPE, signal.SIG_IGN)):
      signal.signal(number, handler)
    if prepare:
      prepare()
    if environment is not None:
      os.environ.clear()
      os.environ.update(environment)
    weakref.finalize._registry.clear()  # The temporary folders are those of the other process.
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN
                 and not name.startswith(_KEPT)]:
      del sys.modules[name]
    is_raw = "PYTHONUNBUFFERED" in os.environ
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, "wb", 0 if is_raw else -1, closefd=False),  # noqa: SIM115
                         errors=errors, line_buffering=number == 2, write_through=is_raw)
        for number, errors in ((1, "strict"), (2, "backslashreplace")))
    subprocess.Popen = _ForkingPopen  # type: ignore[misc]
    status = _executed(*words)
  finally:
    with contextlib.suppress(BaseException):
      threading._shutdown()  # type: ignore[attr-defined]
      atexit._run_exitfuncs()
      sys.stdout.flush()
      sys.stderr.flush()
    os._exit(status)


def _executed(kind: str, *others: str) -> int:
  """Runs a module, code or a file as the main program; returns its exit status."""
  main = sys.modules["__main__"] = types.ModuleType("__main__")
  first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.abspath(kind)))
  sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(":")), *_INSTALLED]
  sys.argv = [kind, *others[1:]] if kind in ("-m", "-c") else [kind, *others]
  try:
    if kind == "-m":
      runpy._run_module_as_main(others[0])  # type: ignore[attr-defined]
      return 0
    if kind != "-c":
      main.__file__ = kind
      with open(kind, encoding="utf-8") as file:
        exec(compile(file.read(), kind, "exec"), main.__dict__)
    else:
      exec(others[0], main.__dict__)
    return 0
  except SystemExit as end:
    if isinstance(end.code, str):
      print(end.code, file=sys.stderr)
    return end.code if isinstance(end.code, int) else int(end.code is not None)
  except BaseException:
    sys.excepthook(*sys.exc_info())
    return 1


if __name__ == "__main__":
  _ADDED = {os.getcwd(), *os.environ.get("PYTHONPATH", "").split(":")}
  _INSTALLED = [path for path in sys.path if path not in _ADDED]
  _serve()
