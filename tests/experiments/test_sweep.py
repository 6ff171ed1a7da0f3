"""The files in `configs/sweeps/`; `test_howto` runs a sweep of real runs by command."""

import gin
import pytest

import experiments.d4pg
import experiments.gan
import experiments.logan
import experiments.maml
import experiments.r3gan
import experiments.sngan  # noqa: F401  (their gin names)
from replicator.app import config
from replicator.sweeps import space, sweep, sweep_file
from tests.programs.processes import ROOT

FILES = sorted((ROOT / "configs" / "sweeps").glob("*.gin"))


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
