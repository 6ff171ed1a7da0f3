"""Python programs as forks of one process that has imported TensorFlow, which takes seconds.

`run` is `subprocess.run` of such a fork. Where it starts this Python itself, as a launcher starts
its workers, the new process is a fork of the fork. TensorFlow has computed nothing in any process
that is forked.
"""

import atexit
import contextlib
import functools
import importlib
import inspect
import io
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
from collections.abc import Callable, Mapping, Sequence

_ROOT = pathlib.Path(__file__).parents[2]

# What a program must import itself: gin has a state, and knows the modules of the project.
_OWN = ("benchmarks", "experiments", "gin", "models", "replicator", "tests")
# What programs import besides.
_OTHERS = ("jinja2", "matplotlib.figure", "matplotlib.backends.backend_svg", "numpy", "optuna",
           "scipy.special", "sklearn.datasets")


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
    alarm = threading.Timer(timeout, server.kill)  # Its forks end with it.
    alarm.start()
    line = server.stdout.readline()
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
  """The process that is forked; it ends with its standard input."""
  server = subprocess.Popen([sys.executable, "-m", __name__], cwd=_ROOT, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
  atexit.register(server.communicate)
  return server


def _serve() -> None:
  """Runs each command that comes, and prints its exit status."""
  from replicator.console import quiet
  from replicator.processes import end_with_parent
  quiet.import_tensorflow()
  for name in _OTHERS:
    importlib.import_module(name)
  for line in sys.stdin:
    words, folder, environment, files = json.loads(line)
    ends_with_this = end_with_parent()
    child = os.fork()
    if not child:
      streams = [os.open(os.devnull, os.O_RDONLY),
                 *(os.open(name, os.O_WRONLY | os.O_CREAT) for name in files)]
      _become(words, folder, environment, streams, ends_with_this)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class _ForkingPopen(subprocess.Popen):
  """Forks this process where Python would start again to run a program."""

  def _execute_child(self, *args, **kwargs) -> None:
    how = inspect.signature(super()._execute_child).bind(*args, **kwargs).arguments
    words = how["args"]
    # A thread may hold a lock, which would stay locked in the fork.
    is_alone = len(os.listdir("/proc/self/task")) == 1
    if (isinstance(words, str) or words[0] != sys.executable or how["pass_fds"] or not is_alone
        or (words[1].startswith("-") and words[1] not in ("-m", "-c"))):
      super()._execute_child(*args, **kwargs)
      return
    pipes = [how[name] for name in (
        "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
    self.pid = os.fork()
    if not self.pid:
      _become(words[1:], how["cwd"], how["env"], [pipes[0], pipes[3], pipes[5]],
              how["preexec_fn"], how["start_new_session"])
    self._child_created = True
    self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _become(words: Sequence[str], folder: str | None, environment: Mapping[str, str] | None,
            streams: Sequence[int], prepare, new_session: bool = False) -> None:
  """Makes this fork what `python WORDS` is, and ends it. The streams are file numbers, or -1."""
  status = 1
  try:
    for number, stream in enumerate(streams):
      if stream != -1:
        os.dup2(stream, number)
    os.closerange(3, 1024)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for stop, handler in ((signal.SIGINT, signal.default_int_handler),
                          (signal.SIGTERM, signal.SIG_DFL)):
      signal.signal(stop, handler)
    if new_session:
      os.setsid()
    if prepare:
      prepare()
    if environment is not None:
      os.environ.clear()
      os.environ.update(environment)
    weakref.finalize._registry.clear()  # The temporary folders are those of the other process.
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN
                 and not name.startswith("replicator.internals")]:  # TensorFlow knows a gradient.
      del sys.modules[name]
    is_raw = "PYTHONUNBUFFERED" in os.environ
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, "wb", 0 if is_raw else -1, closefd=False),  # noqa: SIM115
                         errors=errors, line_buffering=number == 2, write_through=is_raw)
        for number, errors in ((1, "strict"), (2, "backslashreplace")))
    os.chdir(folder or ".")
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
