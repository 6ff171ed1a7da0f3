"""Replicas and micro-batches do not change the training, nor what its evaluations find."""

import contextlib
import pathlib
from collections.abc import Callable

from experiments.cyclegan import cyclegan
from experiments.dmd2 import dmd2
from experiments.domain_adaptation import domain_adaptation
from experiments.maml import maml
from experiments.resnet import resnet
from replicator.app import config
from tests.experiments.tiny_gans import GANS, MIRRORED, ROOT
from tests.programs import logs
from tests.programs.capabilities import eagerly

import pytest

COMMON = ["train.precision = 'float64'", "train.steps = 3", "train.log_every = 1",
          "train.eval_every = 3", "train.checkpoint_every = 3", "train.steps_per_call = 1",
          "train.global_batch_size = 4", "Replicator.jit_compile = False",
          "train.check_first_step = False"]
SETTINGS = {  # The configuration, and what makes it tiny.
    maml: ("maml_sinusoids", ["MAML.sizes = (5,)", "maml.new_tasks = 6"]),
    domain_adaptation: ("domain_adaptation_digits", [
        "train.global_batch_size = 8", "DomainAdaptation.adaptation_start = 2"]),
    cyclegan: ("cyclegan_shapes16", [
        "Shapes.resolution = 8", "Shapes.size = 48", "CycleGANGenerator.width = 2",
        "CycleGANGenerator.blocks = 1", "PatchDiscriminator.width = 4", "CycleGAN.pool_size = 5",
        "train.eval_every = 0"]),
    dmd2: ("dmd2_gaussians", ["DenoisingMLP.units = 4", "generator/wrap_optimizer.every = 2"]),
    resnet: ("resnet_digits", [
        "ResNet.width = 0.25", "train.global_batch_size = 32", "ImageClassifier.mix = @CutMix",
        "ImageClassifier.augment = @FlipAndShift", "resnet.data = @Augmented",
        "Augmented.data = @Digits", "Augmentation.contrast = 0.4"]),
    **{gan.main: (gan.file, [*gan.bindings, "train.global_batch_size = 32",
                             "train.eval_every = 0"]) for gan in GANS.values()}}
MEASURED = (maml, domain_adaptation, dmd2, resnet)
CENTRAL = ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"]
PARTS = ["microbatch.n = 2"]


def train(program: Callable, folder: pathlib.Path, bindings: list[str], is_compiled: bool
          ) -> pathlib.Path:
  file, tiny = SETTINGS[program]
  config.parse([str(ROOT / "configs" / f"{file}.gin")], [*COMMON, *tiny, *bindings])
  with contextlib.nullcontext() if is_compiled else eagerly():  # To compile it takes longer.
    program(str(folder))
  return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  """A function: the folder of a training on one device, made once for each setting."""
  made: dict[tuple, pathlib.Path] = {}

  def of(program: Callable, settings: list[str]) -> pathlib.Path:
    key = (program, *settings)
    if key not in made:
      made[key] = train(program, tmp_path_factory.mktemp("one"), settings,
                        is_compiled=program in (cyclegan, domain_adaptation))
    return made[key]

  return of


MAIN = {name: gan.main for name, gan in GANS.items()}
COMPILED = [
    (MAIN["gan"], MIRRORED[2], []),
    (MAIN["logan"], MIRRORED[2], ["LOGAN.discriminator_updates = 1"]),
    (MAIN["sngan"], CENTRAL, ["SNGAN.discriminator_updates = 1"]),
    # Its networks have no batch statistics, which are those of a micro-batch.
    (MAIN["r3gan"], ["microbatch.n = 4"], [])]
LINE_BY_LINE = [
    *((program, MIRRORED[2], []) for program in (
        maml, domain_adaptation, resnet, cyclegan, dmd2, MAIN["bigan"], MAIN["bigbigan"],
        MAIN["r3gan"])),
    (cyclegan, PARTS, []), (dmd2, PARTS, []), (MAIN["gan"], MIRRORED[4], []),
    # Statistics cover one micro-batch over all replicas, not the full batch.
    (MAIN["gan"], MIRRORED[2], [*PARTS, "GAN.discriminator_updates = 1"])]


@pytest.mark.parametrize("program, divided, settings, is_compiled", [
    (*COMPILED[0], True), *(pytest.param(*row, row in COMPILED, marks=pytest.mark.slow)
                            for row in COMPILED[1:] + LINE_BY_LINE)])
def test_however_it_is_divided_the_training_is_the_same(
    program, divided, settings, is_compiled, one, tmp_path):
  expected = one(program, settings)
  last = logs.rows(expected)[-1]
  assert last["step"] == 3 and len(last) > 3
  assert any(name.startswith("eval/") for name in last) == (program in MEASURED)
  logs.assert_same_runs(
      train(program, tmp_path, [*divided, *settings], is_compiled), expected)
