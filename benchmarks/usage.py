"""Memory and CPU time of processes, a process for each measurement, and missing packages."""

import importlib.util
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys


def resident_mib(process: int | str = "self") -> float:
  """The highest resident size of a process so far, in MiB; that of its program alone.

  `getrusage` would count what the parent had when it started the process.
  """
  status = pathlib.Path(f"/proc/{process}/status").read_text()
  found = re.search(r"VmHWM:\s*(\d+) kB", status)
  assert found
  return int(found[1]) / 1024


def family_mib() -> float:
  """The sizes of this process and of its `multiprocessing` children, added up, in MiB.

  What they share counts in each.
  """
  children = (resident_mib(child.pid) for child in multiprocessing.active_children() if child.pid)
  return resident_mib() + sum(children)


def cpu_seconds(process: int) -> float:
  """The CPU seconds of a process and of its children that have ended."""
  text = pathlib.Path(f"/proc/{process}/stat").read_text()
  times = text.rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime
  return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def measured_alone(module: str, *flags: str) -> dict:
  """The measurements that `python -m module FLAGS` prints in its last line, as JSON."""
  output = subprocess.run([sys.executable, "-m", module, *flags], stdout=subprocess.PIPE,
                          check=True, text=True).stdout
  return json.loads(output.splitlines()[-1])


def require(*packages: str) -> None:
  """Ends the program if one of the packages that it compares with is not installed."""
  missing = [name for name in packages if not importlib.util.find_spec(name.replace("-", "_"))]
  if missing:
    sys.exit(f"{', '.join(missing)} is not installed: pip install {' '.join(packages)}")
