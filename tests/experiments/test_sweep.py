"""Sweeps of real runs, by `python -m experiments.sweep` and by the files in `configs/sweeps/`."""

import gin
import pytest

import experiments.d4pg
import experiments.gan
import experiments.logan
import experiments.r3gan
import experiments.sngan  # noqa: F401  (their gin names)
from replicator.app import config
from replicator.sweeps import space, sweep, sweep_file
from tests.programs import logs
from tests.programs.processes import ROOT, forked, python

FILES = sorted((ROOT / "configs" / "sweeps").glob("*.gin"))

# A run on digits, made so small that to start it takes longer than to train.
SMALL = """
sweep.experiment = 'experiments.gan'
sweep.gin_files = ['configs/dcgan_digits.gin']
sweep.params = [
    'train.steps = 20', 'train.global_batch_size = 16', 'train.log_every = 5',
    'train.eval_every = 0', 'train.checkpoint_every = 5',
    'DCGANGenerator.width = 8', 'DCGANDiscriminator.width = 8']
sweep.metric = 'generator'
sweep.grid = {'GAN.latent_dim': [8]}
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


@pytest.mark.slow
def test_a_sweep_of_real_runs_is_the_same_under_ray(tmp_path):
  path, found = tmp_path / "small.gin", {}
  path.write_text(SMALL)
  for runner, run in (("local", forked), ("ray", python)):
    folder = tmp_path / runner
    done = run("-m", "experiments.sweep", f"--sweep_file={path}", f"--workdir={folder}",
               "--jobs=2", f"--runner={runner}")
    assert "1 of 1 done" in done.stdout
    found[runner] = {each.parent.name: logs.rows(each.parent)
                     for each in folder.glob("trials/*/metrics.jsonl")}
    for rows in found[runner].values():
      assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert "1 of 1 done" in (folder / "sweep.html").read_text()
  assert len(found["local"]) == 1 and found["local"] == found["ray"]
