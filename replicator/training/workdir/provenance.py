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
_MAX_NEW = 200  # New Python files; more are an environment that git does not ignore.
_GIT_SECONDS = 20.0

# Environment variables that may change the numbers of a run.
_PREFIXES = ("TF_", "XLA_", "OMP_", "MKL_", "CUDA_", "NVIDIA_", "TPU_", "KERAS_")
_NAMES = ("PYTHONPATH", "PYTHONHASHSEED")
# Recorded elsewhere, without effect on numbers, or Terraform's, which may hold secrets.
_LEFT_OUT = ("TF_CONFIG", "TF_CPP_", "TPU_ML_PLATFORM", "CUDA_HOME", "CUDA_PATH",
             "TF_CLI_", "TF_TOKEN_", "TF_VAR_")


@dataclasses.dataclass(frozen=True)
class Code:
  """The state of the repository that a file belongs to; outside a repository, all is empty."""

  commit: str | None = None  # With `+` if files were changed or added since.
  diff: bytes = b""  # The patch from the commit, for `git apply`; empty if it is too large to keep.
  note: str | None = None  # The reason why changed code has no diff.


def of_this_process() -> dict[str, Any]:
  """The facts of `run.json` that any program has. They are JSON-able."""
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
  """The state of the program's repository, or of this library's if the program has none."""
  found = code_of(file) if file else Code()
  return found if found.commit else code_of(__file__)


def digests_of_code() -> dict[str, str]:
  """A digest of each file of the user's that is imported, by module, and one of this library.

  It also finds changes that no repository has. The program's own package is the user's, too, where
  it is installed from a wheel.
  """
  main = getattr(sys.modules["__main__"], "__spec__", None)
  own = main.name.partition(".")[0] if main else ""
  found = {"replicator": _digest_of_engine()}
  for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None) or ""
    if name == "__main__":  # Whose own name may be `experiments.NAME`.
      name = main.name if main else os.path.basename(file)
    is_own = name.partition(".")[0] == own != "replicator"
    if file.endswith(".py") and (is_of_user(file) or is_own) and name != "__mp_main__":
      found[name] = _digest([pathlib.Path(file)])
  return found


@functools.cache  # A process that trains several times has loaded it once.
def _digest_of_engine() -> str:
  return _digest(sorted(pathlib.Path(ENGINE).rglob("*.py")))


def _digest(files: Iterable[pathlib.Path]) -> str:
  digest = hashlib.sha256()
  for file in files:
    with contextlib.suppress(OSError):
      digest.update(file.read_bytes())
  return digest.hexdigest()[:8]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
  """The environment variables that may change the numbers of a run."""
  return {name: value for name, value in sorted(variables.items())
          if (name.startswith(_PREFIXES) or name in _NAMES) and not name.startswith(_LEFT_OUT)}


def machine() -> dict[str, Any]:
  """The host, the processor, how many cores this process may use, the accelerators' models."""
  import tensorflow as tf
  accelerators = [tf.config.experimental.get_device_details(d).get("device_name", d.device_type)
                  for d in tf.config.list_physical_devices() if d.device_type != "CPU"]
  return {"host": platform.node(), "processor": _processor(), "cores": usable_cores(),
          "accelerators": accelerators}


def usable_cores() -> int:
  """The number of CPU cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.processor() or platform.machine()


@functools.cache
def code_of(file: str) -> Code:
  """The state of a file's repository at the first call; new Python files count as changes."""
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
  new = listed.split(b"\0")[:-1]  # Each ends with a zero.
  with tempfile.TemporaryDirectory(prefix="replicator-") as scratch:
    # New files are added to a copy of the index, so that the repository stays as it is. The copy
    # is as old: git looks into files that were changed in the second of the index.
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
