"""Tiny settings of every GAN, and trainings of them that can be compared."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from experiments import bigan, bigbigan, gan, logan, r3gan, sngan
from models.vision.images.classes import Classes
from replicator.app import config
from tests.programs.processes import ROOT

TRAIN = ["train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 0"]
MIRRORED = {n: ["Replicator.strategy = 'mirrored'", f"Replicator.logical_cpus = {n}"]
            for n in (2, 4, 8)}


class TinyGAN(NamedTuple):
  """An experiment, its configuration, and what makes it tiny."""

  main: Callable[[str], None]
  step: Callable[..., Any]
  file: str
  bindings: list[str]
  image_shape: tuple[int, int, int] = (8, 8, 1)


_SNGAN = ["SNGANGenerator.width_multiplier = 0.0625", "SNGANDiscriminator.width_multiplier = 0.125"]
_WITH_ENCODER = [*_SNGAN, "Encoder.width_multiplier = 0.125"]
GANS = {
    "sngan": TinyGAN(sngan.train_sngan, sngan.SNGAN, "sngan_digits", _WITH_ENCODER),
    "bigan": TinyGAN(bigan.train_bigan, bigan.BiGAN, "bigan_digits", _WITH_ENCODER),
    "gan": TinyGAN(gan.train_gan, gan.GAN, "wgangp_digits", [
        "DCGANGenerator.base_channels = 4", "DCGANDiscriminator.base_channels = 4",
        "GAN.discriminator_updates = 2"]),
    "r3gan": TinyGAN(r3gan.train_r3gan, r3gan.R3GAN, "r3gan_stacked_digits", [
        f"R3GAN{network}.{setting}" for network in ("Generator", "Discriminator")
        for setting in ("widths = (8, 16)", "groups = (2, 4)")], (8, 8, 3)),
    "logan": TinyGAN(logan.train_logan, logan.LOGAN, "logan_digits", [
        *_SNGAN, "LOGAN.latent_dim = 4"]),
    "bigbigan": TinyGAN(bigbigan.train_bigbigan, bigbigan.BigBiGAN, "bigbigan_digits", [
        "BigGANGenerator.base_channels = 2", "BigGANDiscriminator.base_channels = 2",
        "BigBiGANEncoder.base_channels = 2",
        "BigBiGANDiscriminator.units = 8", "BigBiGANEncoder.units = 8",
        "BigBiGAN.latent_dim = 4"]),
}


def settings(name: str, *bindings: str) -> list[str]:
  """The bindings of a tiny GAN that logs every step, in which an update has 16 images."""
  return [*GANS[name].bindings, "train.global_batch_size = 16", *TRAIN, *bindings]


def configure(name: str, *bindings: str) -> None:
  config.parse([str(ROOT / "configs" / f"{GANS[name].file}.gin")], settings(name, *bindings))


def build(name: str, *bindings: str) -> Any:
  """The step of a tiny GAN for digits."""
  configure(name, *bindings)
  classes = [] if name == "bigbigan" else [Classes.numbered(10)]
  return GANS[name].step(GANS[name].image_shape, *classes)


def train(workdir: pathlib.Path, name: str, *bindings: str) -> None:
  """Trains a tiny GAN."""
  configure(name, *bindings)
  GANS[name].main(str(workdir))
