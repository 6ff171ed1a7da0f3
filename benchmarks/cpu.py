"""The CPU time that a process has used."""

import os
import pathlib


def cpu_seconds(process: int) -> float:
  """The CPU seconds of a process and of its children that have ended."""
  text = pathlib.Path(f"/proc/{process}/stat").read_text()
  times = text.rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime
  return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
