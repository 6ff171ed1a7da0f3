"""Tiny settings of every GAN, and trainings of them that can be compared."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from experiments import bigan, bigbigan, gan, logan, r3gan, sngan
from replicator.app import config
from tests.programs.processes import ROOT

TRAIN = ["train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 0"]
MIRRORED = {n: ["Replicator.strategy = 'mirrored'", f"Replicator.logical_cpus = {n}"]
            for n in (2, 4)}


class TinyGAN(NamedTuple):
  """An experiment, its configuration, and what makes it tiny."""

  main: Callable[[str], None]
  step: Callable[..., Any]
  file: str
  bindings: list[str]
  image_shape: tuple[int, int, int] = (8, 8, 1)


_SNGAN = ["SNGANGenerator.width = 0.0625", "SNGANDiscriminator.width = 0.125"]
GANS = {
    "sngan": TinyGAN(sngan.sngan, sngan.SNGAN, "sngan_digits", [*_SNGAN, "Encoder.width = 0.125"]),
    "bigan": TinyGAN(bigan.bigan, bigan.BiGAN, "bigan_digits", [*_SNGAN, "Encoder.width = 0.125"]),
    "gan": TinyGAN(gan.gan, gan.GAN, "wgangp_digits", [
        "DCGANGenerator.width = 4", "DCGANDiscriminator.width = 4",
        "GAN.discriminator_updates = 2"]),
    "r3gan": TinyGAN(r3gan.r3gan, r3gan.R3GAN, "r3gan_stacked_digits", [
        f"R3GAN{network}.{setting}" for network in ("Generator", "Discriminator")
        for setting in ("widths = (8, 16)", "groups = (2, 4)")], (8, 8, 3)),
    "logan": TinyGAN(logan.logan, logan.LOGAN, "logan_digits", [*_SNGAN, "LOGAN.latent_dim = 4"]),
    "bigbigan": TinyGAN(bigbigan.bigbigan, bigbigan.BigBiGAN, "bigbigan_digits", [
        "BigGANGenerator.width = 2", "BigGANDiscriminator.width = 2", "BigBiGANEncoder.width = 2",
        "BigBiGANDiscriminator.units = 8", "BigBiGANEncoder.units = 8",
        "BigBiGAN.latent_dim = 4"]),
}


def settings(name: str, *bindings: str) -> list[str]:
  """The bindings of a tiny GAN that logs every step of 32 images."""
  return [*GANS[name].bindings, "train.global_batch_size = 32", *TRAIN, *bindings]


def configure(name: str, *bindings: str) -> None:
  config.parse([str(ROOT / "configs" / f"{GANS[name].file}.gin")], settings(name, *bindings))


def build(name: str, *bindings: str) -> Any:
  """The step of a tiny GAN for digits."""
  configure(name, *bindings)
  classes = [] if name == "bigbigan" else [10]
  return GANS[name].step(GANS[name].image_shape, *classes)


def train(workdir: pathlib.Path, name: str, *bindings: str) -> None:
  """Trains a tiny GAN."""
  configure(name, *bindings)
  GANS[name].main(str(workdir))
