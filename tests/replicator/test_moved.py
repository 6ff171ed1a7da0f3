"""Names that have moved: one line for who writes an old one, and the records of earlier runs."""

import importlib
import importlib.util
import pathlib
import pkgutil
import re
import shutil

import gin
import pytest

from replicator import UsageError, compare, moved, rerun
from replicator.app import config
from replicator.configuration import configurables, operative, statements
from replicator.workdir.report import write_report
from tests.programs.processes import ROOT, python
from tests.programs.refusals import refusal

OLD = pathlib.Path(__file__).parent / "old_runs"  # Made before the first names moved.

# ---- The table ----------------------------------------------------------------------------------


def exists(name: str) -> bool:
  """Whether a full name is that of a module, of what it holds, or of a parameter in gin files."""
  try:
    return pkgutil.resolve_name(name) is not None
  except (ImportError, AttributeError):
    owner, _, last = name.rpartition(".")
    return last in configurables.parameters(configurables.find(owner))


def test_what_has_moved_is_found_under_its_new_name_only():
  files = {name: ROOT / f"{name.replace('.', '/')}.py" for name in moved.MODULES}
  assert [old for old, new in moved.MODULES.items()
          if files[old].exists() or not importlib.util.find_spec(new)] == []
  assert [new for new in moved.NAMES.values() if not exists(new)] == []
  assert moved.new_name("sngan.Generator") and not moved.new_name("n.Generator")


@pytest.mark.parametrize("statement, remedy", [
    ("from models.vision.digits import Digits", "write models.vision.builtin.digits"),
    ("from models.metrics import frechet", "write models.metrics.distances.frechet"),
    ("from models.metrics import image_classes", "models.metrics.images.image_sets reads labels"),
    ("import replicator.layers.pool", "write replicator.example_pool"),
    ("replicator.Pool", "write replicator.ExamplePool"),
    ("from replicator import Pool", "write replicator.ExamplePool"),
    ("from models.gan.networks.sngan import Generator",
     "write models.gan.networks.sngan.SNGANGenerator"),
    # A module of that name is a package today.
    ("from models.gan.losses import hinge", "write models.gan.losses.adversarial.hinge"),
    ("from models.gan import losses; losses.hinge", "write models.gan.losses.adversarial.hinge")])
def test_a_program_with_an_old_name_gets_one_line_with_the_new_one(statement, remedy):
  with pytest.raises((ImportError, AttributeError)) as raised:
    exec(statement, {"replicator": importlib.import_module("replicator")})
  assert re.fullmatch(rf"[\w.]+ (has moved|is gone): {remedy}", str(raised.value))


@pytest.mark.parametrize("statement, error", [
    ("import models.nowhere", "No module named 'models.nowhere'"),
    ("from models.gan.losses import wgan",
     "cannot import name 'wgan' from 'models.gan.losses' (.../losses/__init__.py)"),
    ("import replicator.mirror", "No module named 'replicator.mirror'"),
    ("import models.gan.losses; models.gan.losses.__wrapped__", "has no attribute '__wrapped__'"),
    ("from models.gan.losses import adversarial, tfgan", None)])
def test_other_names_are_found_or_not_as_ever(statement, error):
  if error is None:
    exec(statement)
    return
  with pytest.raises((ImportError, AttributeError)) as raised:
    exec(statement)
  assert re.search(".*".join(map(re.escape, error.split("..."))), str(raised.value))


def test_a_new_process_knows_of_them_whatever_it_imports_first():
  done = python("-c", "import models.rl.rendering", status=1)
  assert done.stderr.splitlines()[-1] == (
      "ModuleNotFoundError: models.rl.rendering has moved: write models.rl.environments.rendering")


def test_a_gin_file_with_an_old_name_gets_one_line_with_the_new_one(tmp_path, monkeypatch):
  importlib.import_module("experiments.sngan")
  monkeypatch.setitem(moved.NAMES, "experiments.sngan.SNGAN.zdim",
                      "experiments.sngan.SNGAN.latent_dim")
  monkeypatch.setitem(moved.GONE, "experiments.sngan.SNGAN.relic", "leave it out")
  for binding, line in [
      ("a/Generator.width = 1", "Generator.width has another name now: write SNGANGenerator.width"),
      ("train.trackers = [@sngan.Generator]", "has another name now: write SNGANGenerator"),
      ("folder.ImageFolder.path = 'x'", "path has another name now: write ImageFolder.path"),
      ("SNGAN.zdim = 3", "SNGAN.zdim has another name now: write SNGAN.latent_dim"),
      ("SNGAN.relic = 3", "SNGAN.relic is gone: leave it out"),
      ("import models.vision.digits", " has moved: write models.vision.builtin.digits")]:
    (tmp_path / "a.gin").write_text(f"\n{binding}\n")
    refused = refusal(config.parse, [str(tmp_path / "a.gin")], [])
    assert refused.startswith(f"{tmp_path}/a.gin:2: ") and line in refused


def test_a_program_that_runs_has_its_old_names_too(tmp_path, monkeypatch):
  monkeypatch.setattr(configurables.command, "program", lambda: ["python", "-m", "lab.work"])
  monkeypatch.setitem(moved.GONE, "lab.work.planted_step.relic", "leave it out")
  with gin.unlock_config():
    gin.external_configurable(lambda size=1: size, "planted_step", module="__main__")
  with pytest.raises(UsageError, match=r"planted_step\.relic is gone: leave it out"):
    config.parse([], ["planted_step.relic = 3"])


# ---- Earlier runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gan", "sac", "sngan"])
def test_the_configuration_of_an_earlier_run_is_read(name, capsys):
  importlib.import_module(f"experiments.{name}")
  file = OLD / f"{name}.gin"
  config.parse([str(file)], [])
  gone = re.findall(r"[\w.]+\.\w+(?=,|$)", capsys.readouterr().err.partition("gone:")[2])
  assert len(statements.last_read()) + len(gone) == file.read_text().count(" = ")


@pytest.fixture
def run(tmp_path):
  """The workdir of a run of LOGAN, whose networks were called Generator and Discriminator."""
  shutil.copytree(OLD / "logan", tmp_path / "logan")
  facts = tmp_path / "logan" / "run.json"
  facts.write_text(facts.read_text().replace('"experiments/', f'"{ROOT}/experiments/')
                   .replace("/home/someone/replicator", str(ROOT)))
  return tmp_path / "logan"


def test_its_names_are_those_of_today_and_others_are_left_out(run, monkeypatch, capsys):
  importlib.import_module("experiments.logan")
  monkeypatch.setitem(moved.GONE, "experiments.logan.LOGAN.relic", "leave it out")
  with (run / "config.gin").open("a") as file:
    file.write("LOGAN.relic = %RELIC\nRELIC = 1\nimport models.vision.digits\n")
  config.parse([str(run / "config.gin")], [])
  assert gin.query_parameter("SNGANGenerator.width") == 0.125
  assert gin.query_parameter("LOGAN.generator").configurable.name == "SNGANGenerator"
  assert "import models.vision.builtin.digits\n" in operative.text()
  assert re.fullmatch(f"note: {run}/config.gin: read without what is gone: .*LOGAN.relic\n",
                      capsys.readouterr().err)


def test_it_can_be_compared_reported_and_run_again(run):
  assert compare.main([str(run), f"--output={run.parent / 'compare.html'}"]) == 0
  assert "Generator.width" in write_report(run).read_text()
  command = rerun.make_command(run, rerun.read_facts(run), run.parent / "again")
  assert command[1:] == ["-m", "experiments.logan", f"--gin_file={run}/config.gin",
                         f"--workdir={run.parent}/again"]
