"""Every configuration in `configs/` parses, builds and takes a step."""

import importlib
import pathlib
import re

import replicator
from replicator.app import config
from replicator.configuration import checks, statements
from replicator.strategies import strategy
from replicator.tools.sweeps import space, sweep, sweep_file
from tests.experiments.tiny_gans import GANS
from tests.programs.capabilities import eagerly
from tests.programs.logs import rows

import gin
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

# The experiments of the files that begin so; those that `tests/experiments` trains come last.
AGENTS = {"d4pg": "d4pg", "ddpg": "d4pg", "dqn": "dqn", "mpo": "mpo", "ppo": "ppo", "sac": "sac",
          "td3": "td3", "world": "world_model"}
OTHERS = {"bigan": "bigan", "bigbigan": "bigbigan", "biggan": "gan", "cyclegan": "cyclegan",
          "dcgan": "gan", "gan": "gan", "logan": "logan", "r3gan": "r3gan", "sngan": "sngan",
          "vqgan": "vqgan", "wgangp": "gan", "resnet": "resnet", "self": "self_supervision",
          "maml": "maml", "diffusion": "diffusion", "dmd2": "dmd2"}
for experiment in {*AGENTS.values(), *OTHERS.values()}:
  importlib.import_module(f"experiments.{experiment}")
MAINS = {begin: gin.get_configurable(f"train_{name}")
         for begin, name in {**AGENTS, **OTHERS}.items()}
TRAINED = {"d4pg_pendulum", *(tiny.file for tiny in GANS.values())}  # In tests/experiments.
CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
STRATEGIES = sorted((CONFIGS / "strategies").glob("*.gin"))
SWEEPS = sorted((CONFIGS / "sweeps").glob("*.gin"))


def begin(path: pathlib.Path) -> str:
  """`resnet20_cifar10.gin -> resnet`."""
  first = path.stem.split("_")[0]
  return "resnet" if first.startswith("resnet") else first


FILES = [path for path in sorted(CONFIGS.glob("*_*.gin"))  # Others include the two.
         if begin(path) in MAINS and path.stem not in ("self_supervision", "world_model")]


def references() -> dict[tuple[str, str], tuple[str, str]]:
  """References in the files, by what they are bound to: the file, and with the other brackets."""
  found = {}
  for path in FILES:
    config.parse([str(path)], [])
    for binding in checks.effective(statements.last_read()):
      for each in binding.references():
        name = "/".join([*each.scopes, each.configurable.name])
        other = f"@{name}{'' if each.evaluate else '()'}"
        found[binding.name, name] = (
            str(path), f"[{other}]" if isinstance(binding.value, list) else other)
  return found


def test_the_wrong_brackets_are_refused_with_the_right_ones():
  found = references()
  assert len(found) > 60
  for (name, _), (file, other) in found.items():
    if (name, other) == ("train_dmd2.data", "@GaussianMixture()"):  # Its type says nothing.
      continue
    with pytest.raises(replicator.UsageError) as error:
      config.parse([file], [f"{name} = {other}"])
    right = other.replace("()", "") if "()" in other else re.sub(r"([\w/]+)", r"\1()", other)
    assert str(error.value).endswith(f" Write {right}")


def test_there_is_a_file_for_every_strategy():
  assert {path.stem for path in STRATEGIES} == set(strategy.NAMES) - {"default"} | {
      "mirrored_cpus", "model_parallel"}


@pytest.mark.parametrize("path", STRATEGIES, ids=lambda path: path.stem)
def test_strategy_file_names_its_strategy(path):
  config.parse([str(CONFIGS / "sngan_digits.gin"), str(path)], [])
  name = {"mirrored_cpus": "mirrored", "model_parallel": "mirrored"}.get(path.stem, path.stem)
  assert gin.query_parameter("Replicator.strategy") == name


@pytest.mark.parametrize("name, replicas", [("mirrored", 1), ("mirrored_cpus", 4)])
def test_mirrored_takes_all_gpus_or_so_many_cpus(name, replicas):
  config.parse([str(CONFIGS / "strategies" / f"{name}.gin")], [])
  devices = tf.config.list_logical_devices("GPU") if name == "mirrored" else []
  assert replicator.Replicator().num_replicas == (len(devices) or replicas)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweep_file_is_of_a_metric_that_its_experiment_logs(path):
  file = sweep_file.read(str(path))
  assert file.metric == {"experiments.sngan": "eval/classifier_frechet_distance",
                         "experiments.logan": "eval/classifier_frechet_distance",
                         "experiments.r3gan": "eval/mode_divergence",
                         "experiments.maml": "eval/maml_1",
                         "experiments.d4pg": "eval/return",
                         "experiments.sac": "eval/return"}[file.experiment]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweep_file_binds_what_its_experiment_has(path, tmp_path, monkeypatch):
  monkeypatch.chdir(CONFIGS.parent)
  file = sweep_file.read(str(path))
  found = sweep.Sweep(file, tmp_path, retry_failed=False).search.peek()
  flags = [word.partition("=") for word in found.words()]
  config.parse([value for flag, _, value in flags if flag == "--gin_file"],
               [value for flag, _, value in flags if flag == "--gin_param"])
  for name in file.space():
    assert repr(gin.query_parameter(name)) == space.gin_text(found.bindings[name])


@pytest.mark.parametrize("path", [path for path in FILES if begin(path) in OTHERS],
                         ids=lambda path: path.stem)
def test_configuration_goes_with_the_calls_of_a_tpu(path):
  config.parse([str(path), str(CONFIGS / "strategies" / "tpu.gin")], [])
  steps_per_call = gin.query_parameter("train.steps_per_call")
  for name in ("steps", "log_every", "eval_every", "checkpoint_every"):
    assert gin.query_parameter(f"train.{name}") % steps_per_call == 0


# Narrow networks and one update: what is tested is that the parts fit together.
R3GAN = [f"R3GAN{network}.{option} = %{option.upper()}"
         for network in ("Generator", "Discriminator") for option in ("widths", "groups")]
TINY = {
    "gan": R3GAN,
    "bigbigan": ["BigGANGenerator.base_channels = 2", "BigGANDiscriminator.base_channels = 2",
                 "BigBiGANDiscriminator.units = 8", "BigBiGANDiscriminator.layers = 2",
                 "BigBiGANEncoder.base_channels = 2", "BigBiGANEncoder.units = 8",
                 "BigBiGAN.discriminator_updates = 1", "train_bigbigan.validation_split = 0.25"],
    "logan": ["SNGANGenerator.width_multiplier = 0.0625",
              "SNGANDiscriminator.width_multiplier = 0.0625",
              "BigGANDeepGenerator.base_channels = 4", "BigGANDeepDiscriminator.base_channels = 4",
              "LOGAN.discriminator_updates = 1"],
    "biggan": ["BigGANGenerator.base_channels = 2", "BigGANDiscriminator.base_channels = 2",
               "GAN.discriminator_updates = 1"],
    "cyclegan": ["CycleGANGenerator.base_channels = 2", "CycleGANGenerator.blocks = 1",
                 "PatchDiscriminator.base_channels = 2", "Replicator.jit_compile = False"],
    "dcgan": ["DCGANGenerator.base_channels = 2", "DCGANDiscriminator.base_channels = 2"],
    "r3gan": R3GAN,
    "vqgan": ["VQGANAutoencoder.base_channels = 2", "PatchDiscriminator.base_channels = 2"],
    "sngan": ["SNGANGenerator.width_multiplier = 0.0625",
              "SNGANDiscriminator.width_multiplier = 0.0625",
              "Encoder.width_multiplier = 0.0625", "SNGAN.discriminator_updates = 1"],
    "resnet": ["ResNet.width_multiplier = 0.0625", "train.eval_every = 1"],
    "self": ["ResNet.width_multiplier = 0.0625", "SelfSupervision.hidden_sizes = (8,)",
             "train.eval_every = 1",
             "FeatureEvaluator.neighbors = 1", "train.global_batch_size = 2"],
    **dict.fromkeys(AGENTS, (
        "Policy.sizes = (8, 8)", "Critic.sizes = (8, 8)", "ActionValues.sizes = (8, 8)",
        "SequenceReplay.length = 4", "Dreamer.horizon = 2",
        "Replay.capacity = 100", "RateLimiter.learning_starts = 64", "train.global_batch_size = 8",
        "Replicator.jit_compile = False", "train.steps_per_call = 1")),
}
NEEDS = {"dqn_minatar": ["minatar"], "dqn_atari": ["ale_py", "cv2"],
         "d4pg_pixels": ["dm_control"]}  # Packages of extras.
QUICK = ("sac_pendulum", "dqn_cartpole")


def make_folders(root: pathlib.Path) -> None:
  """The data that configurations name: folders of two classes of two images, and archives."""
  for data in ("cifar10/train", "cifar10/test", "imagenet/train", "imagenet/validation"):
    for name in ("airplane", "ship"):
      folder = root / data / name
      folder.mkdir(parents=True)
      for i in range(2):
        Image.fromarray(np.full([32, 32, 3], 60 * i, np.uint8)).save(folder / f"{i}.png")
  for part in ("train", "t10k"):
    np.savez(root / f"fashion_{part}.npz", images=np.zeros([4, 28, 28], np.uint8),
             labels=np.arange(4))


@pytest.fixture
def not_compiled():
  """Steps are not compiled, which takes much longer than one step; tests/experiments compiles them.
  """
  with eagerly():
    yield


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else pytest.mark.slow)
    for path in FILES if begin(path) in TINY and path.stem not in TRAINED])
def test_configuration_takes_a_step(path, tmp_path, monkeypatch):
  for package in NEEDS.get(path.stem, ()):
    pytest.importorskip(package)
  monkeypatch.chdir(tmp_path)
  make_folders(tmp_path)
  stages = {"gan_stacked_digits": 2, "r3gan_stacked_digits": 2, "r3gan_cifar10": 4,
            "r3gan_cifar10_small": 4}.get(path.stem)
  config.parse([str(path)], [
      "train.global_batch_size = 4", "train.steps = 1", "train.log_every = 1",
      "train.eval_every = 0", "train.checkpoint_every = 0", *TINY[begin(path)],
      *([f"WIDTHS = {(4,) * stages}", f"GROUPS = {(1,) * stages}"] if stages else []),
      # Other tests build the networks for 128 pixels.
      *(["ImageFolder.resolution = 32"] if path.stem.endswith("imagenet128") else [])])
  MAINS[begin(path)](str(tmp_path / "run"))
  *before, last = rows(tmp_path / "run")
  losses = [value for name, value in last.items() if name.startswith("loss/") or name == "value"]
  assert losses and np.isfinite(losses).all()
  if begin(path) == "resnet":
    assert last["eval/top1"] <= last["eval/top5"] <= 1
    assert before[0]["eval/loss"] != last["eval/loss"]
  if begin(path) == "self":
    assert 0 <= last["eval/knn_accuracy"] <= 1


def test_a_file_that_others_include_binds_nothing_of_its_experiment():
  """A copy of the experiment under another name includes it, too."""
  bases = [CONFIGS / f"{name}.gin" for name in {*AGENTS.values(), *OTHERS.values()}]
  texts = {path.stem: path.read_text() for path in bases if path.exists()}
  assert {"sac", "sngan"} <= texts.keys()
  assert not [name for name, text in texts.items() if re.search(rf"^train_{name}\.", text,
                                                                re.MULTILINE)]
