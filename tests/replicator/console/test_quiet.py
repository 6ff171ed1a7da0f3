"""The lines that reach the standard error. The programs here import no TensorFlow."""

import os
import pathlib
import select
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]
HANG_SECONDS = 300
IMPORTS = "import os, subprocess, sys\nfrom replicator.console import quiet\n"


def start(code: str, preexec_fn=None, **environment: str) -> subprocess.Popen:
  # The import of TensorFlow has set the log level of this process.
  changed = ("TF_CPP_MIN_LOG_LEVEL", "PYTHONUNBUFFERED")
  inherited = {k: v for k, v in os.environ.items() if k not in changed}
  return subprocess.Popen([sys.executable, "-c", IMPORTS + code], cwd=ROOT,
                          env={**inherited, **environment}, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=preexec_fn)


def run(code: str, **environment: str) -> tuple[int, str]:
  """The exit status of a program and what it wrote to the standard error."""
  process = start(code, **environment)
  out, err = process.communicate(timeout=HANG_SECONDS)
  assert out == ""
  return process.returncode, err


NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795185226.981580   26398 port.cc:153] oneDNN custom operations are on.
W0000 00:00:1795185226.981580   26398 rewrite.cc:1] Something was rewritten.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.
E0000 00:00:1795185226.981580   26398 meta_optimizer.cc:967] remapper failed: INVALID_ARGUMENT
E0000 00:00:1795185226.981580   26398 cpu_utils.h:1] oneDNN supports DT_HALF only on some CPUs.
"""
WORDS = """\
E0000 00:00:1795185226.981580   26398 port.cc:153] An error.
F0000 00:00:1795185226.981580   26398 port.cc:153] The last error.
Ordinary words, Warning: too.
I0000 is how this line begins
  I0000 00:00:1795185226.981580   26398 port.cc:153] quoted
E0000 00:00:1795185226.981580   26398 meta_optimizer.cc:967] Another error.
E0000 00:00:1795185226.981580   26398 cpu_utils.h:1] oneDNN has no such kernel.
"""


# ---- The filter ---------------------------------------------------------------------------------


def test_notes_of_the_native_code_are_dropped_and_the_rest_passes_in_order():
  mixed = "".join(noise + word for noise, word in zip(
      [*NOISE.splitlines(True), ""], WORDS.splitlines(True), strict=True))
  assert run(f"""
quiet.drop_native_log()
quiet.drop_native_log()  # The second call does nothing.
os.write(2, {mixed!r}.encode())
print("from Python", file=sys.stderr)
os.write(2, b"no newline at the end")
quiet.finish()
""") == (0, WORDS + "from Python\nno newline at the end")


def test_a_user_who_set_the_log_level_sees_the_log():
  assert run(f"""
quiet.drop_native_log()
os.write(2, {NOISE!r}.encode())
quiet.finish()
""", TF_CPP_MIN_LOG_LEVEL="0") == (0, NOISE)


def test_a_traceback_passes():
  status, err = run("quiet.drop_native_log()\nraise ArithmeticError('of the user')")
  assert status == 1
  assert err.startswith("Traceback") and err.endswith("ArithmeticError: of the user\n")


def test_lines_before_a_crash_are_shown():
  status, err = run("""
quiet.drop_native_log()
os.write(2, b"I0000 00:00:1.5 1 a.cc:1] no\\nF0000 00:00:1.5 1 a.cc:2] Check failed\\n")
os.abort()
""")
  assert status == -signal.SIGABRT
  assert err == "F0000 00:00:1.5 1 a.cc:2] Check failed\n"


def test_lines_are_shown_when_they_are_written():
  process = start("quiet.drop_native_log()\nprint('words', file=sys.stderr)\nsys.stdin.read()")
  assert process.stderr is not None
  try:
    assert select.select([process.stderr], [], [], HANG_SECONDS)[0]  # While the program still runs.
  finally:
    assert process.communicate(timeout=HANG_SECONDS)[1] == "words\n"


def as_in_a_terminal() -> None:
  """The process has a group of its own, and does not ignore Ctrl-C as one in the background."""
  os.setsid()
  signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_does_not_end_the_filter_before_the_last_lines():
  code = """
import signal, time
quiet.drop_native_log()
presses = []
signal.signal(signal.SIGINT, lambda *_: presses.append(1))
print("ready", flush=True)
while not presses:  # One may come before `signal.pause` would wait for it.
  time.sleep(0.01)
os.write(2, b"I0000 00:00:1.5 1 a.cc:1] noise\\nlast words\\n")
quiet.finish()
"""
  process = start(code, preexec_fn=as_in_a_terminal)
  assert process.stdout is not None and process.stdout.readline() == "ready\n"
  os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
  assert process.communicate(timeout=HANG_SECONDS) == ("", "last words\n")


def test_a_background_process_delays_no_exit():
  process = start("""
quiet.drop_native_log()
print(subprocess.Popen(["sleep", "inf"], stdout=subprocess.DEVNULL).pid, flush=True)
quiet.finish()
""")
  assert process.stdout is not None
  sleeper = int(process.stdout.readline())
  try:
    assert process.wait(timeout=HANG_SECONDS) == 0
  finally:
    os.kill(sleeper, signal.SIGKILL)
    process.communicate(timeout=HANG_SECONDS)


# ---- The import ---------------------------------------------------------------------------------

# A module that replaces TensorFlow.
LOUD = """
import logging, os
os.write(2, b"I0000 00:00:1.5 1 a.cc:1] noise\\n")
class config:
  list_physical_devices = lambda: os.write(2, b"E0000 00:00:1.5 1 cuda.cc:1] no device\\n")
get_logger = lambda: logging.getLogger("tensorflow")
"""


def test_the_import_is_silent(tmp_path):
  (tmp_path / "tensorflow.py").write_text(LOUD)
  assert run("""
quiet.import_tensorflow()
assert sys.modules["tensorflow"]
import logging
logging.getLogger("tensorflow").warning("of Python")
os.write(2, b"words\\n")
""", PYTHONPATH=str(tmp_path)) == (0, "words\n")


def test_an_import_that_fails_shows_all_that_was_written(tmp_path):
  (tmp_path / "tensorflow.py").write_text(LOUD + "raise ImportError('no libcuda')\n")
  status, err = run("quiet.import_tensorflow()", PYTHONPATH=str(tmp_path))
  assert status == 1
  assert err.startswith("I0000 00:00:1.5 1 a.cc:1] noise\nTraceback")
  assert err.endswith("ImportError: no libcuda\n")


def test_the_log_level_of_the_user_is_kept(tmp_path):
  (tmp_path / "tensorflow.py").write_text(LOUD)
  level = "quiet.import_tensorflow()\nos.write(2, os.environ['TF_CPP_MIN_LOG_LEVEL'].encode())"
  assert run(level, PYTHONPATH=str(tmp_path)) == (0, "2")
  assert run(level, PYTHONPATH=str(tmp_path), TF_CPP_MIN_LOG_LEVEL="0") == (0, "0")


def test_what_keras_can_do_without_is_left_out_but_stays_usable(tmp_path):
  for name in ("sklearn", "matplotlib", "scipy"):
    (tmp_path / f"{name}.py").write_text("loaded = True\n")
  (tmp_path / "tensorflow.py").write_text(LOUD + """
import gc
assert not gc.isenabled()
import importlib
sklearn = None
for name in ("sklearn", "matplotlib", "scipy"):
  try:
    sklearn = importlib.import_module(name)
  except ImportError:
    pass
""")
  assert run("""
import gc
quiet.import_tensorflow()
assert sys.modules["tensorflow"].sklearn is None and "matplotlib" not in sys.modules
assert gc.isenabled() and gc.get_freeze_count()
import sklearn
assert sklearn.loaded
""", PYTHONPATH=str(tmp_path)) == (0, "")
  assert run("import sklearn\nquiet.import_tensorflow()\n"  # The user needs it.
             "assert sys.modules['tensorflow'].sklearn is sklearn",
             PYTHONPATH=str(tmp_path)) == (0, "")
