"""Replicas and micro-batches do not change the training, nor what its evaluations find."""

import contextlib
import pathlib
from collections.abc import Callable

from experiments.cyclegan import train_cyclegan
from experiments.dmd2 import train_dmd2
from experiments.domain_adaptation import train_domain_adaptation
from experiments.maml import train_maml
from experiments.resnet import train_resnet
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
    train_maml: ("maml_sinusoids", ["MAML.sizes = (5,)", "train_maml.new_tasks = 6"]),
    train_domain_adaptation: ("domain_adaptation_digits", [
        "train.global_batch_size = 8", "DomainAdaptation.adaptation_start = 2"]),
    train_cyclegan: ("cyclegan_shapes16", [
        "Shapes.resolution = 8", "Shapes.size = 48", "CycleGANGenerator.base_channels = 2",
        "CycleGANGenerator.blocks = 1", "PatchDiscriminator.base_channels = 4",
        "CycleGAN.pool_size = 5",
        "train.eval_every = 0"]),
    train_dmd2: ("dmd2_gaussians", ["DenoisingMLP.units = 4",
                                    "generator/wrap_optimizer.every = 2"]),
    train_resnet: ("resnet_digits", [
        "ResNet.width_multiplier = 0.25", "train.global_batch_size = 32",
        "ImageClassifier.mix = @CutMix",
        "ImageClassifier.augment = @FlipAndShift", "train_resnet.data = @Augmented",
        "Augmented.data = @Digits", "Augmentation.contrast = 0.4"]),
    **{gan.main: (gan.file, [*gan.bindings, "train.global_batch_size = 16",
                             "train.eval_every = 0"]) for gan in GANS.values()}}
MEASURED = (train_maml, train_domain_adaptation, train_dmd2, train_resnet)
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
                        is_compiled=program in (train_cyclegan, train_domain_adaptation))
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
        train_maml, train_domain_adaptation, train_resnet, train_cyclegan, train_dmd2,
        MAIN["bigan"], MAIN["bigbigan"],
        MAIN["r3gan"])),
    (train_cyclegan, PARTS, []), (train_dmd2, PARTS, []), (MAIN["gan"], MIRRORED[4], []),
    (MAIN["gan"], MIRRORED[8], []),
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
