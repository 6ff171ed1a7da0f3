"""What the README shows works as shown."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_custom_step_has_thirty_lines_and_trains_on_two_replicas(tmp_path):
  (program,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
  assert len(program.strip().splitlines()) <= 30
  (tmp_path / "my_step.py").write_text(program)
  done = subprocess.run(
      [sys.executable, "my_step.py", "--gin_param=train.steps = 20",
       "--gin_param=train.log_every = 10", "--gin_param=Replicator.strategy = 'mirrored'",
       "--gin_param=Replicator.logical_cpus = 2", "--workdir=run"],
      cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  assert done.stderr == ""
  rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  assert [row["step"] for row in rows] == [10, 20]
  assert np.isfinite([[row["d"], row["ge"]] for row in rows]).all()


def test_files_that_the_readme_names_exist():
  named = re.findall(r"\b((?:configs|benchmarks|docs|experiments)/[\w/]+\.\w+)", README)
  assert named
  for name in named:
    assert (ROOT / name).exists(), name
