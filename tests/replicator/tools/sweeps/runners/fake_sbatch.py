#!/usr/bin/env python3
"""A stand-in for sbatch: runs the indices of an array in the background, two at a time."""

import os
import pathlib
import re
import subprocess
import sys

RUN = """
import os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
script, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def run(index):
  environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(index)}
  subprocess.run(["bash", script], env=environment)
list(ThreadPoolExecutor(2).map(run, range(first, last + 1)))
"""

assert sys.argv[1] == "--parsable"
script = pathlib.Path(sys.argv[2])
first, last = re.findall(r"^#SBATCH --array=(\d+)-(\d+)", script.read_text(), re.MULTILINE)[0]
subprocess.Popen([sys.executable, "-c", RUN, str(script), first, last], start_new_session=True,
                 env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("4711;cluster")
