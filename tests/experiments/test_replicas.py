"""Replicas and micro-batches do not change the training, nor what its evaluations find."""

import contextlib

import pytest

from experiments.cyclegan import cyclegan
from experiments.dmd2 import dmd2
from experiments.domain_adaptation import domain_adaptation
from experiments.maml import maml
from experiments.resnet import resnet
from replicator.app import config
from tests.experiments.tiny_gans import MIRRORED, ROOT
from tests.programs import logs
from tests.programs.capabilities import eagerly

COMMON = ["train.precision = 'float64'", "train.steps = 3", "train.log_every = 1",
          "train.eval_every = 3", "train.checkpoint_every = 3", "train.steps_per_call = 1",
          "train.global_batch_size = 4", "Replicator.jit_compile = False"]
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
        "Augmented.data = @Digits", "Augmentation.contrast = 0.4"])}
PARTS = ["microbatch.n = 2"]


@pytest.mark.slow
@pytest.mark.parametrize("program, divided", [
    (maml, MIRRORED[2]), (domain_adaptation, MIRRORED[2]), (resnet, MIRRORED[2]),
    (cyclegan, MIRRORED[2]), (cyclegan, PARTS), (dmd2, MIRRORED[2]), (dmd2, PARTS)])
def test_however_it_is_divided_the_training_is_the_same(program, divided, tmp_path):
  file, bindings = SETTINGS[program]
  for name, more in (("one", []), ("divided", divided)):
    config.parse([str(ROOT / "configs" / f"{file}.gin")], [*COMMON, *bindings, *more])
    is_compiled = name == "one" and program in (cyclegan, domain_adaptation)
    with contextlib.nullcontext() if is_compiled else eagerly():  # To compile it takes longer.
      program(str(tmp_path / name))
  last = logs.rows(tmp_path / "one")[-1]
  assert last["step"] == 3
  assert program is cyclegan or any(name.startswith("eval/") for name in last)
  logs.assert_same_runs(tmp_path / "divided", tmp_path / "one")
