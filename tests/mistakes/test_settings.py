"""Settings and inputs of parts of models that cannot work: the line of each, up to the remedy.

Every row makes the part alone. `...` in a line stands for any words.
"""

import re

from models.diffusion import edm
from models.diffusion.gaussians import GaussianMixture
from models.diffusion.networks import DenoisingMLP
from models.gan.augmentation.ada import ADA, AdaptiveProbability
from models.gan.evaluation.mode_coverage import ModeCoverage
from models.gan.evaluation.sample_quality import SampleQuality
from models.gan.latents.optimization import LatentOptimization
from models.gan.penalties.consistency import consistency
from models.gan.penalties.gradients import r1, r2, wgan_gp
from models.gan.penalties.lecam import lecam
from models.gan.penalties.orthogonality import orthogonality
from models.metrics.comparison import gather
from models.metrics.distances.frechet import intra_class_frechet_distance
from models.metrics.distances.sliced_wasserstein import sliced_wasserstein_distance
from models.metrics.extractors.extractor import check
from models.rl.acting.action_noise import ActionNoise, Exploration, HeldNoise, OrnsteinUhlenbeck
from models.rl.acting.evaluation import EpisodeEvaluator
from models.rl.environments.environments import Environments
from models.rl.networks.critic_heads import CategoricalReturns
from models.rl.networks.two_hot import TwoHot
from models.rl.replay.random_shift import RandomShift
from models.rl.replay.replay import Replay
from models.rl.replay.sequences import SequenceReplay
from models.rl.world_model.returns import ReturnRange
from models.rl.world_model.rssm import RSSM
from models.vision.augmentation.mixup import CutMix, MixUp
from models.vision.augmentation.random_view import Augmentation, Augmented
from models.vision.builtin.digits import Digits, StackedDigits
from models.vision.builtin.shapes import Shapes
from models.vision.classification.resnet import ResNet
from models.vision.images.image_source import train_validation_split
from models.vision.images.labels import from_csv, from_json
from models.vision.self_supervision import losses
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf

HIGHER = "two or more, and v_max above v_min"


def of(part, *arguments, **settings):
  """Makes the part with these arguments."""
  return lambda: part(*arguments, **settings)


SETTINGS = [
    # GANs.
    (lambda: ADA()(tf.zeros([1, 7, 8, 3])), "ADA: images of 7 x 8 x 3; it needs at least 8 x 8"),
    (lambda: ADA()(tf.zeros([1, 8, 8, 2])), "ADA: images of 8 x 8 x 2; it ... 1 or 3 channels"),
    (lambda: ADA(color=-1.0)(tf.zeros([1, 8, 8, 3])), "ADA.color = -1.0: must not be negative"),
    (of(AdaptiveProbability, images=0), "AdaptiveProbability.images = 0: must be at least 1"),
    (of(AdaptiveProbability, every=0), "AdaptiveProbability.every = 0: must be at least 1"),
    (of(LatentOptimization, steps=-1), "LatentOptimization.steps = -1: must be at least 0"),
    (of(LatentOptimization, fraction=0.0),
     "LatentOptimization.fraction = 0.0: must be above 0, and at"),
    (of(lecam, decay=1.0), "lecam.decay = 1.0: must be at least 0 and below 1"),
    (of(lecam, decay=-0.1), "lecam.decay = -0.1: must be at least 0 and below 1"),
    *((of(penalty, every=0), f"{penalty.__name__}.every = 0: must be at least 1")
      for penalty in (r1, r2, wgan_gp, consistency, orthogonality)),
    (of(ModeCoverage, Digits(), "none"), "ModeCoverage ... @StackedDigits, but the data is @D"),
    (of(ModeCoverage, StackedDigits(), "none", num_samples=999),
     "ModeCoverage.num_samples = 999: must be at least 1000"),
    (of(SampleQuality, Digits(), "none", num_samples=1),
     "SampleQuality.num_samples = 1 with 1797 images"),
    # Diffusion.
    (of(DenoisingMLP, (2,), layers=0), "DenoisingMLP.layers = 0: must be at least 1"),
    (of(edm.Denoiser, (2,), DenoisingMLP, 0.0), "Denoiser.sigma_data = 0.0: must be positive"),
    (of(GaussianMixture, deviation=0.0), "GaussianMixture.deviation = 0.0: must be positive"),
    # Images.
    (of(Augmentation, scale=(0.5, 1.5)),
     "Augmentation.scale = (0.5, 1.5): write the lowest and the highest value, ... at most 1.0"),
    (of(Augmentation, ratio=(2.0, 1.0)),
     "Augmentation.ratio = (2.0, 1.0): write the lowest and the highest value, above 0, such as"),
    (of(Augmentation, hue=0.6), "Augmentation.hue = 0.6: must be in [0, 0.5]"),
    (of(Augmentation, contrast=-1.0), "Augmentation.contrast = -1.0: must be at least 0"),
    (of(Augmented, Digits, center_crop=1.2), "Augmented.center_crop = 1.2: must be in (0, 1]"),
    *((of(from_json, text, ["a.png"], "d.json"), "d.json: must be {")
      for text in (b"", b"[]", b"{}")),
    (of(from_csv, b"\xff\xfe", ["a.png"], "d.csv"), "d.csv: is not a CSV file in UTF-8 ("),
    (of(MixUp, 0.0), "MixUp.alpha = 0.0: must be above 0"),
    (of(CutMix, -1), "CutMix.alpha = -1: must be above 0"),
    (lambda: MixUp()(tf.zeros([3, 2, 2, 1]), tf.zeros([3, 2])),
     "...mix pairs of examples, but a replica has 3"),
    (of(Shapes, resolution=7), "Shapes.resolution = 7: "),
    (of(Shapes, resolution=129), "Shapes.resolution = 129: "),
    (of(Shapes, size=0), "Shapes.size = 0: "),
    (of(StackedDigits, size=999), "StackedDigits.size = 999: must be at least 1000"),
    (of(ResNet, 10, depth=51), "ResNet.depth = 51: no such network; use one of 18, 34, 50"),
    (of(ResNet, 10, stem="smal"), "ResNet.stem = 'smal': no such stem. Did you mean 'small'?"),
    (of(ResNet, 10, width_multiplier=0.001),
     "ResNet.width_multiplier = 0.001 leaves ...: use at least 0.015625"),
    (of(losses.SimCLR, temperature=0.0), "SimCLR.temperature = 0.0: must be above 0"),
    (of(losses.DINO, prototypes=0), "DINO.prototypes = 0: must be above 0"),
    *((of(train_validation_split, Digits(), share),
       f"validation_split = {share}: holds out ... use a fraction such as")
      for share in (0.0, 0.0001, 1.0, -0.2, 1.5)),
    # Metrics.
    (of(gather, [], None, {"images"}), "There are no generated images"),
    *((of(intra_class_frechet_distance, np.eye(6), [1] * 6, np.eye(6), labels), line)
      for labels, line in [
          ([1, 1, 1, 5, 5, 5], "Class 5 has 0 real and 3 generated samples"),
          ([1] * 5, "...6 generated features and labels of the shape [5]")]),
    (of(check, np.zeros([2, 8, 8, 3])), "...type float64: pass uint8 from 0 to 255"),
    (of(check, np.zeros([2, 8, 8, 3], np.int32)), "...type int32"),
    *((of(check, np.zeros(shape, np.uint8)), f"...{shape}: {line}") for shape, line in [
        ([2, 8, 8, 1], "pass an array ... for gray ones, np.repeat"),
        ([2, 3, 8, 8], "pass an array"), ([8, 8, 3], "pass an array"),
        ([0, 8, 8, 3], "...at least one")]),
    *((of(sliced_wasserstein_distance, np.zeros(real, np.uint8), np.zeros(generated, np.uint8)),
       f"...{line}") for real, generated, line in [
          ([4, 8, 8, 3], [4, 8, 8, 3], "8 x 8 pixels"), ([4, 66, 66, 1], [4, 66, 66, 1], "66 x 66"),
          ([4, 32], [4, 32], "[4, 32]"),
          ([8, 32, 32, 3], [7, 32, 32, 3], "[8, 32, 32, 3] and generated ones [7")]),
    # Agents.
    (of(OrnsteinUhlenbeck, 0.0), "OrnsteinUhlenbeck.theta = 0.0: must be above 0"),
    (of(HeldNoise, 0), "HeldNoise.steps = 0: must be at least 1"),
    (of(Exploration, scale=-1.0), "...scale=-1.0...no number may be negative"),
    (of(ActionNoise, 3, 3, 1, Exploration(scale=(1.0, 2.0)), 128),
     "Exploration.scale = (1.0, 2.0): ...number = 3"),
    (of(CategoricalReturns, atoms=1), f"...{HIGHER}"),
    (of(CategoricalReturns, v_min=5.0, v_max=5.0), f"...{HIGHER}"),
    (of(TwoHot, limit=0.0), "TwoHot.limit = 0.0"),
    (of(TwoHot, bins=4), "TwoHot.bins = 4: must be an odd number"),
    (of(TwoHot, bins=1), "TwoHot.bins = 1"),
    (of(RSSM, 4, 2, latents=0), "RSSM.latents = 0"),
    (of(RSSM, 4, 2, uniform_mix=1.5), "RSSM.uniform_mix = 1.5"),
    (of(ReturnRange, high=950.0), "ReturnRange.high = 9.5: "),
    (of(RandomShift, 0), "RandomShift.limit = 0: must be at least 1"),
    (of(SequenceReplay, (2,), 1, 1, length=0), "SequenceReplay.length = 0: must be at least 1"),
    *((of(Replay, (2,), 1, 1, **settings), line) for settings, line in [
        ({"capacity": 5, "n_step": 5}, "Replay.capacity = 5: leaves each stream 5 timesteps, too"),
        ({"n_step": 0}, "Replay.n_step = 0: must be at least 1"),
        ({"discount": 1.5}, "Replay.discount = 1.5: must be from 0 to 1"),
        ({"priority_exponent": -1.0}, "Replay.priority_exponent = -1.0: must be"),
        ({"observation_dtype": "float16"}, "...of float16; make them float32, float64 or uint8")]),
    (of(EpisodeEvaluator, of(Environments, "Pendulum-v1"), 0), "EpisodeEvaluator.episodes = 0"),
    *((of(Environments, name), f"Environments.name = '{name}'...{line}") for name, line in [
        ("Pendulum-v0", "no such environment. Did you mean 'Pendulum-v1'?"),
        ("Zork", "no such environment. gymnasium.pprint_registry() lists all."),
        ("Warehouse-v3", "lists all. One that a module registers is written 'module:N"),
        ("nowhere:Pendulum-v1", "needs nowhere, which is not installed")]),
    *((of(Environments, "Pendulum-v1", **settings), line) for settings, line in [
        ({"number": 0}, "Environments.number = 0"),
        ({"max_episode_steps": 0}, "Environments.max_episode_steps = 0"),
        ({"pixels": -1}, "Environments.pixels = -1"),
        ({"vectorization": "threads"}, "...must be 'sync' or 'async'"),
        ({"kwargs": {"gravity": 1.0}}, "...cannot be made: TypeError: ...unexpected ...'gravity'"),
        ({"wrappers": {"gymnasium.wrappers:ClipReward": {"low": 1}}}, "...made: ...'low'"),
        ({"wrappers": {"models.rl.environments.action_repeat:ActionRepeat": {"repeat": 0}}},
         "ActionRepeat.repeat = 0: must be at least 1"),
        *(({"wrappers": {path: {}}}, f"Environments.wrappers: '{path}' cannot be loaded...; use")
          for path in ("ClipReward", "nowhere:ClipReward", "gymnasium.wrappers:ClipRewards"))]),
]


@pytest.mark.parametrize("make, line", SETTINGS, ids=[line[:60] for _, line in SETTINGS])
def test_a_setting_that_cannot_work_is_named(make, line):
  assert re.match(".*".join(map(re.escape, line.split("..."))), refusal(make))
