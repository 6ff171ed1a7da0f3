"""The provenance of a run: its command, code, versions and machine."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from replicator.console.command import experiment, program
from replicator.console.versions import versions
from replicator.errors import ENGINE, is_of_user
from replicator.training.workdir import reader

DIFF = "changes.diff"  # The file of a workdir with the uncommitted changes of the code.
MAX_DIFF = 2 ** 20  # Bytes.
_MAX_NEW = 200  # New Python files; more must be an environment that git does not ignore.
_GIT_SECONDS = 20.0

# Environment variables that may affect the numbers of a run.
_PREFIXES = ("TF_", "XLA_", "OMP_", "MKL_", "CUDA_", "NVIDIA_", "TPU_", "KERAS_")
_NAMES = ("PYTHONPATH", "PYTHONHASHSEED")
# Recorded elsewhere, with no effect on the numbers, or Terraform's, which may hold secrets.
_LEFT_OUT = ("TF_CONFIG", "TF_CPP_", "TPU_ML_PLATFORM", "CUDA_HOME", "CUDA_PATH",
             "TF_CLI_", "TF_TOKEN_", "TF_VAR_")


@dataclasses.dataclass(frozen=True)
class Code:
  """The state of a file's repository; empty if the file is in none."""

  commit: str | None = None  # With `+` if files were changed or added since.
  diff: bytes = b""  # The patch against the commit, for `git apply`; empty if too large to keep.
  note: str | None = None  # Why changed code has no diff.


def of_this_process() -> dict[str, Any]:
  """Returns the facts of `run.json` common to all programs. They can be written as JSON."""
  file = getattr(sys.modules["__main__"], "__file__", None)
  file = file and os.path.abspath(file)
  code, engine = code_of_program(file), code_of(__file__).commit
  return {
      "experiment": experiment(),
      "command": shlex.join([*program(), *sys.argv[1:]]),
      "program": program()[1:],
      "program_file": file,
      "argv": sys.argv[1:],
      "working_directory": os.getcwd(),
      "tf_config": reader.object_in(os.environ.get("TF_CONFIG", "")) or None,
      "environment": environment(os.environ),
      "git_commit": code.commit,
      "git_diff": code.note,
      "replicator_commit": engine if engine != code.commit else None,
      "code": digests_of_code(),
      "versions": versions(),
      "machine": machine(),
  }


def code_of_program(file: str | None) -> Code:
  """Returns the state of the program's repository, or of this library's if there is none."""
  found = code_of(file) if file else Code()
  return found if found.commit else code_of(__file__)


def digests_of_code() -> dict[str, str]:
  """Returns a digest of each imported user file, by module, and one of this library.

  This detects changes even outside a repository. The program's own package counts as the user's,
  even if it is installed from a wheel.
  """
  main = getattr(sys.modules["__main__"], "__spec__", None)
  own = main.name.partition(".")[0] if main else ""
  found = {"replicator": _digest_of_engine()}
  for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None) or ""
    if name == "__main__":  # Its real name may be `experiments.NAME`.
      name = main.name if main else os.path.basename(file)
    is_own = name.partition(".")[0] == own != "replicator"
    if file.endswith(".py") and (is_of_user(file) or is_own) and name != "__mp_main__":
      found[name] = _digest([pathlib.Path(file)])
  return found


@functools.cache  # Cached: a process that trains several times loads the code only once.
def _digest_of_engine() -> str:
  return _digest(sorted(pathlib.Path(ENGINE).rglob("*.py")))


def _digest(files: Iterable[pathlib.Path]) -> str:
  digest = hashlib.sha256()
  for file in files:
    with contextlib.suppress(OSError):
      digest.update(file.read_bytes())
  return digest.hexdigest()[:8]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
  """Returns the environment variables that may affect the numbers of a run."""
  return {name: value for name, value in sorted(variables.items())
          if (name.startswith(_PREFIXES) or name in _NAMES) and not name.startswith(_LEFT_OUT)}


def machine() -> dict[str, Any]:
  """Returns the host, the processor, the number of usable cores, and the accelerators' models."""
  import tensorflow as tf
  accelerators = [tf.config.experimental.get_device_details(d).get("device_name", d.device_type)
                  for d in tf.config.list_physical_devices() if d.device_type != "CPU"]
  return {"host": platform.node(), "processor": _processor(), "cores": usable_cores(),
          "accelerators": accelerators}


def usable_cores() -> int:
  """Returns the number of CPU cores available to this process."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.processor() or platform.machine()


@functools.cache
def code_of(file: str) -> Code:
  """Returns a file's repository state at the first call; new Python files count as changes."""
  try:
    root, commit = _git(pathlib.Path(file).resolve().parent, "rev-parse", "--show-toplevel",
                        "HEAD").decode().splitlines()
  except (OSError, ValueError, subprocess.SubprocessError):
    return Code()
  try:
    diff = _diff(root)
  except (OSError, subprocess.SubprocessError) as error:
    return Code(f"{commit}+", note=f"git cannot list the changes: {type(error).__name__}")
  if len(diff) > MAX_DIFF:
    return Code(f"{commit}+", note=f"{len(diff):,} bytes of changes, too many to keep")
  return Code(f"{commit}+", diff) if diff else Code(commit)


def _diff(root: str) -> bytes:
  index = _git(root, "rev-parse", "--path-format=absolute", "--git-path", "index")
  listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
  new = listed.split(b"\0")[:-1]  # Each name ends with a NUL.
  with tempfile.TemporaryDirectory(prefix="replicator-") as scratch:
    # Adds new files to a copy of the index, which leaves the repository unchanged. The copy keeps
    # the index's timestamp, which git needs to detect files changed in the same second.
    copied = pathlib.Path(scratch) / "index"
    shutil.copy2(index.decode().rstrip("\n"), copied)
    if 0 < len(new) <= _MAX_NEW:
      _git(root, "add", "--intent-to-add", "--", *map(os.fsdecode, new), index=copied)
    return _git(root, "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "diff",
                "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", index=copied)


def _git(folder: str | pathlib.Path, *words: str, index: pathlib.Path | None = None) -> bytes:
  variables = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}
  return subprocess.run(["git", "-C", str(folder), *words], env=variables, check=True,
                        capture_output=True, timeout=_GIT_SECONDS).stdout
