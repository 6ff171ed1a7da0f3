"""Measures memory and CPU time of processes, and checks for missing packages."""

import importlib.util
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys


def resident_mib(process: int | str = "self") -> float:
  """Returns the peak resident size of a process so far, in MiB.

  `getrusage` would include the parent's memory at the time it started the process.
  """
  status = pathlib.Path(f"/proc/{process}/status").read_text()
  found = re.search(r"VmHWM:\s*(\d+) kB", status)
  assert found
  return int(found[1]) / 1024


def family_mib() -> float:
  """Returns the total size of this process and its `multiprocessing` children, in MiB.

  Shared memory counts in each process.
  """
  children = (resident_mib(child.pid) for child in multiprocessing.active_children() if child.pid)
  return resident_mib() + sum(children)


def cpu_seconds(process: int) -> float:
  """Returns the CPU seconds of a process and its ended children."""
  text = pathlib.Path(f"/proc/{process}/stat").read_text()
  times = text.rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime
  return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def measured_alone(module: str, *flags: str) -> dict:
  """Runs `python -m module FLAGS`; returns the measurements in its last line, which is JSON."""
  output = subprocess.run([sys.executable, "-m", module, *flags], stdout=subprocess.PIPE,
                          check=True, text=True).stdout
  return json.loads(output.splitlines()[-1])


def require(*packages: str) -> None:
  """Exits if a package to compare with is not installed."""
  missing = [name for name in packages if not importlib.util.find_spec(name.replace("-", "_"))]
  if missing:
    sys.exit(f"{', '.join(missing)} is not installed: pip install {' '.join(packages)}")
