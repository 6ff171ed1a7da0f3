"""Sweeps of real runs, by `python -m experiments.sweep` and by the files in `configs/sweeps/`."""

import pathlib
import signal
import subprocess
import sys
import time

import gin
import pytest

import experiments.d4pg
import experiments.gan
import experiments.logan
import experiments.r3gan
import experiments.sngan  # noqa: F401  (their gin names)
from replicator.app import config
from replicator.sweeps import space, sweep, sweep_file, trials
from tests.programs import logs

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "configs" / "sweeps").glob("*.gin"))

# The digits run, made so small that to start it takes longer than to train.
SMALL = """
sweep.experiment = 'experiments.sngan'
sweep.gin_files = ['configs/sngan_digits.gin']
sweep.params = [
    'train.steps = 20', 'train.global_batch_size = 16', 'train.log_every = 5',
    'train.eval_every = 0', 'train.checkpoint_every = 5',
    'SNGANGenerator.width = 0.125', 'SNGANDiscriminator.width = 0.125', 'Encoder.width = 0.125']
sweep.metric = 'encoder'
sweep.grid = {'SNGAN.latent_dim': [8, 12, 16]}
sweep.seeds = [1]
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sweep_file_binds_what_the_experiment_has(path, tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  file = sweep_file.read(str(path))
  found = sweep.Sweep(file, tmp_path, retry_failed=False).search.peek()
  flags = [word.partition("=") for word in found.words()]
  config.parse([value for flag, _, value in flags if flag == "--gin_file"],
               [value for flag, _, value in flags if flag == "--gin_param"])
  for name in file.space():
    assert repr(gin.query_parameter(name)) == space.gin_text(found.bindings[name])
  gin.clear_config()


def begin(path: pathlib.Path, folder: pathlib.Path, *flags: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-m", "experiments.sweep", f"--sweep_file={path}", f"--workdir={folder}",
     "--jobs=2", *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def numbers(folder: pathlib.Path) -> dict[str, list[dict]]:
  """The rows that each trial has logged, without times."""
  return {path.parent.name: logs.rows(path.parent)
          for path in sorted(folder.glob("trials/*/metrics.jsonl"))}


def done(folder: pathlib.Path) -> set[str]:
  records = map(trials.read_record, folder.glob("trials/*"))
  return {record.id for record in records if record and record.status == trials.DONE}


@pytest.mark.slow
def test_a_stopped_sweep_resumes_and_is_the_same_under_ray(tmp_path):
  path, folder = tmp_path / "small.gin", tmp_path / "small"
  path.write_text(SMALL)
  process = begin(path, folder)
  while process.poll() is None and not (done(folder) and set(numbers(folder)) - done(folder)):
    time.sleep(0.2)  # Until one is done, and another one is in the middle of its training.
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 42, output
  assert "to resume: python -m experiments.sweep" in output
  early = done(folder)
  assert 1 <= len(early) < 3

  process = begin(path, folder)
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 0 and "3 of 3 done" in output, output
  assert not early & {line.split()[1] for line in output.splitlines() if line.startswith("done ")}
  found = numbers(folder)
  assert [[row["step"] for row in rows] for rows in found.values()] == [[5, 10, 15, 20]] * 3
  assert "3 of 3 done" in (folder / "sweep.html").read_text()

  process = begin(path, tmp_path / "ray", "--runner=ray", "--sweep_param=sweep.grid = "
                  "{'SNGAN.latent_dim': [8]}")
  output, _ = process.communicate(timeout=600)
  assert process.returncode == 0, output
  under_ray = numbers(tmp_path / "ray")
  assert done(tmp_path / "ray") == set(under_ray) and len(under_ray) == 1
  assert under_ray == {name: found[name] for name in under_ray}
