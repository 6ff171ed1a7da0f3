"""Edits of one line in a gin file of digits, each of which does what it says, and trains."""

from collections.abc import Callable
from typing import Any

import replicator
from models.gan import gans
from replicator import GlobalBatchNorm
from replicator.app import config
from tests.experiments.tiny_gans import GANS
from tests.programs import logs
from tests.programs.capabilities import eagerly

import pytest
import tensorflow as tf

BASE = """
include '{file}.gin'
train.steps = 2
train.log_every = 1
train.eval_every = 0
train.checkpoint_every = 0
"""


def channels(network: Any) -> int:
  """The channels of a generator's 4x4 map."""
  return network.base[-1]


def updates(step: Any, network: str) -> int:
  return int(step.optimizers[network].keras_optimizer.iterations)


def has_batch_norm(network: Any) -> bool:
  return any(isinstance(layer, GlobalBatchNorm) for layer in network.trunk)


EDITS: dict[str, tuple[str, str, str, Callable[[Any, Any], bool]]] = {
    # What it is: the experiment, the file, the line, and what it changes, of the step and its data.
    "nothing": ("sngan", "sngan_digits", "", lambda step, data: (
        channels(step.generator), updates(step, "discriminator"), data.size) == (64, 4, 1797)),
    "twice the channels": (
        "sngan", "sngan_digits", "SNGANGenerator.width_multiplier = 0.5",
        lambda step, data: channels(step.generator) == 2 * 64),
    "twice the base channels": (
        "gan", "dcgan_digits", "DCGANGenerator.base_channels = 128",
        lambda step, data: channels(step.generator) == 2 * 64),
    "half the batch": ("sngan", "sngan_digits", "train.global_batch_size = 32",
                       lambda step, data: updates(step, "generator") == 2),
    "five discriminator updates": (
        "sngan", "sngan_digits", "SNGAN.discriminator_updates = 5",
        lambda step, data: (updates(step, "discriminator"), updates(step, "generator")) == (10, 2)),
    "another data set": ("sngan", "sngan_digits", "train_sngan.data = @StackedDigits",
                         lambda step, data: data.image_shape == (8, 8, 3)),
    "classes": ("sngan", "sngan_digits", "SNGAN.conditional = True",
                lambda step, data: step.num_classes == 10),
    "another loss": ("sngan", "sngan_digits", "SNGAN.loss = @wasserstein",
                     lambda step, data: float(step.loss.generator(tf.constant([-3.0]))) == 3.0),
    "without batch normalization": (
        "gan", "dcgan_digits", "DCGANDiscriminator.batch_norm = False",
        lambda step, data: not has_batch_norm(step.discriminator)
        and has_batch_norm(step.generator)),
    "without the penalty": ("gan", "wgangp_digits", "GAN.penalties = []",
                            lambda step, data: not step.penalties),
}


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """A function that trains an experiment with a line more; returns the step and its data."""
  found = []
  train = replicator.train

  def keeping(make_step, data, *arguments, **settings):
    def made():
      found.append((make_step(), data))
      return found[-1][0]
    return train(made, data, *arguments, **settings)

  monkeypatch.setattr(gans.replicator, "train", keeping)

  def run(experiment: str, file: str, line: str) -> tuple[Any, Any]:
    mine = tmp_path / "mine.gin"
    mine.write_text(BASE.format(file=file))
    config.parse([str(mine)], [line] * bool(line))
    with eagerly():
      GANS[experiment].main(str(tmp_path / "run"))
    return found[-1]
  return run


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_one_line_does_what_it_says(name, trained, tmp_path):
  experiment, file, line, does = EDITS[name]
  step, data = trained(experiment, file, line)
  assert [row["step"] for row in logs.rows(tmp_path / "run")] == [1, 2]
  assert does(step, data)


@pytest.mark.slow
def test_half_the_batch_is_half_the_images_of_every_update(trained, tmp_path, capsys):
  trained("sngan", "sngan_digits", "train.global_batch_size = 32")
  assert "batches of 32" in capsys.readouterr().out


@pytest.mark.slow
def test_train_steps_alone_make_a_run_longer_and_its_schedule_with_it(trained, tmp_path):
  trained("sngan", "sngan_digits", "train.steps = 4")
  rates = [row["learning_rate/generator"] for row in logs.rows(tmp_path / "run")]
  assert len(rates) == 4 and max(rates) == pytest.approx(4e-4) and rates[3] < rates[2] < rates[1]
