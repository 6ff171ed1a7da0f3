"""`replicator sample`: pictures and data sets from the files of a run, by command."""

import contextlib
import importlib
import json
import pathlib
import sys
import zipfile

from experiments import sample
from experiments.bigbigan import train_bigbigan
from experiments.d4pg import d4pg
from experiments.gan import train_gan
from experiments.logan import train_logan
from experiments.resnet import train_resnet
from experiments.sngan import train_sngan
from replicator import UsageError
from replicator.app import config, load
from replicator.configuration import operative
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.checkpoints.saver import Saver
from replicator.training.prepared import Enough
from replicator.training.run import Run
from tests.programs.processes import ROOT

import gin
import numpy as np
import pytest
from PIL import Image

STEP = 2
NARROW_LOGAN = {"SNGANGenerator.width_multiplier": 0.0625,
                "SNGANDiscriminator.width_multiplier": 0.0625}
NARROW_SNGAN = {**NARROW_LOGAN, "Encoder.width_multiplier": 0.0625, "SNGAN.conditional": True}
NARROW_DCGAN = {"DCGANGenerator.base_channels": 2, "DCGANDiscriminator.base_channels": 2}
NARROW_BIGBIGAN = {"BigGANGenerator.base_channels": 2, "BigGANDiscriminator.base_channels": 2,
                   "BigBiGANEncoder.base_channels": 2}
NARROW_AGENT = {"Policy.sizes": (16, 16), "Critic.sizes": (16, 16), "Replay.capacity": 80,
                "Environments.max_episode_steps": 6}
EXPERIMENTS = {  # The main function, the configuration, and what makes networks small.
    "sngan": (train_sngan, "sngan_digits", NARROW_SNGAN),
    "gan": (train_gan, "dcgan_digits", NARROW_DCGAN),
    "bigbigan": (train_bigbigan, "bigbigan_digits", NARROW_BIGBIGAN),
    "logan": (train_logan, "logan_digits", NARROW_LOGAN),
    "double": (train_sngan, "sngan_digits", {**NARROW_SNGAN, "train.precision": "float64"}),
    "d4pg": (d4pg, "d4pg_pendulum", NARROW_AGENT),
    "resnet": (train_resnet, "resnet_digits", {"ResNet.width_multiplier": 0.25})}


class SavingFirst(Callback):
  """Saves the step as it was built, in place of the training, which would take long to compile."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def begin(self, run: Run) -> None:
    checkpoints = Saver(self._folder / "checkpoints", run.module)
    checkpoints.save(STEP, {})
    checkpoints.wait()
    (self._folder / "config.gin").write_text(operative.text())
    raise Enough


def saved(name: str, folder: pathlib.Path) -> pathlib.Path:
  main, file, narrow = EXPERIMENTS[name]
  config.parse([str(ROOT / f"configs/{file}.gin")], [f"{k} = {v!r}" for k, v in narrow.items()])
  folder.mkdir()
  with installed([SavingFirst(folder)]), contextlib.suppress(Enough):
    main(str(folder))
  (folder / "run.json").write_text(json.dumps({
      "program": ["-m", main.__module__], "working_directory": str(ROOT),
      "program_file": sys.modules[main.__module__].__file__, "argv": []}))
  gin.clear_config()
  return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return saved("sngan", tmp_path_factory.mktemp("runs") / "sngan")


@pytest.fixture(scope="module")
def loaded(run):
  """The step of the run, whose generator is compiled once for all tests."""
  gin.clear_config()
  return load.load_run(run)


@pytest.fixture
def loaded_once(loaded, monkeypatch):
  monkeypatch.setattr(load, "load_run", lambda *arguments: loaded)


def sampled(run: pathlib.Path, out: pathlib.Path, *flags: str) -> pathlib.Path:
  assert sample.main([f"--run={run}", f"--out={out}", *flags]) == 0
  return out


def pixels(path) -> np.ndarray:
  with Image.open(path) as image:
    return np.asarray(image)


def files_in(path: pathlib.Path) -> dict[str, bytes]:
  if path.is_dir():
    return {each.name: each.read_bytes() for each in path.glob("*.png")}
  with zipfile.ZipFile(path) as archive:
    return {name: archive.read(name) for name in archive.namelist() if name.endswith(".png")}


# ---- What is written ----------------------------------------------------------------------------


def test_a_grid_has_a_column_for_each_class(run, tmp_path, capsys):
  grid = pixels(sampled(run, tmp_path / "grid.png"))
  assert grid.shape == (8 * 33 + 1, 10 * 33 + 1, 3)
  assert f"grid.png: 80 samples of {run}, step {STEP}" in capsys.readouterr().out
  pair = pixels(sampled(run, tmp_path / "pair.png", "--classes=3,7", "--count=4"))
  assert pair.shape == (2 * 33 + 1, 2 * 33 + 1, 3)


def test_image_i_of_a_seed_is_the_same_whatever_the_count(run, loaded_once, tmp_path):
  few = files_in(sampled(run, tmp_path / "few", "--count=3"))
  many = files_in(sampled(run, tmp_path / "many.zip", "--count=40"))
  other = files_in(sampled(run, tmp_path / "other", "--count=3", "--seed=1"))
  assert list(few) and few.items() <= many.items() and len(many) == 40
  # The classes of the digits have 178, 182, 177, 183, 181, 182, 181, 179, 174 and 180 images.
  assert sorted(few) == ["00000000-class3.png", "00000001-class1.png", "00000002-class5.png"]
  assert few.keys() == other.keys() and all(few[name] != other[name] for name in few)
  assert pixels(tmp_path / "few" / "00000001-class1.png").shape == (8, 8)


def test_a_data_set_has_the_shares_of_the_data_unless_it_is_balanced(run, loaded_once, tmp_path,
                                                                     capsys):
  sampled(run, tmp_path / "a.zip", "--count=3")
  assert "3 samples, classes in the proportions of the data, of " in capsys.readouterr().out
  equal = files_in(sampled(run, tmp_path / "b.zip", "--count=3", "--balanced"))
  assert sorted(equal) == [f"{i:08d}-class{i}.png" for i in range(3)]
  assert "3 samples, classes in equal proportions, of " in capsys.readouterr().out


def test_truncation_changes_the_images(run, loaded_once, tmp_path):
  full = files_in(sampled(run, tmp_path / "full", "--count=2"))
  narrow = files_in(sampled(run, tmp_path / "narrow", "--count=2", "--truncation=0.1"))
  assert full.keys() == narrow.keys() and full != narrow


def test_a_walk_is_a_strip_or_an_animation(run, loaded_once, tmp_path):
  strip = pixels(sampled(run, tmp_path / "walk.png", "--interpolate", "--seed=1,2,3"))
  assert strip.shape == (34, 17 * 33 + 1, 3)
  path = sampled(run, tmp_path / "walk.webp", "--interpolate", "--seed=1,2", "--count=5")
  with Image.open(path) as animation:
    assert animation.format == "WEBP" and animation.n_frames == 5
    np.testing.assert_array_equal(np.asarray(animation.convert("RGB")), strip[:, :34])


def test_images_are_shown_beside_their_reconstructions(run, loaded_once, tmp_path):
  folder = sampled(run, tmp_path / "images", "--count=3")
  pairs = pixels(sampled(run, tmp_path / "pairs.png", f"--reconstruct={folder}", "--classes=0,1,2"))
  original = pixels(folder / "00000000-class3.png").repeat(4, 0).repeat(4, 1)
  np.testing.assert_array_equal(pairs[1:33, 1:33, 0], original)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gan", "bigbigan", "logan", "double"])
def test_every_gan_can_be_sampled(name, tmp_path):
  run = saved(name, tmp_path / "run")
  out = files_in(sampled(run, tmp_path / "out", "--count=2", "--truncation=0.5"))
  assert len(set(out.values())) == 2
  between = "--classes=3,7" if name == "gan" else "--seed=1,2"
  assert sampled(run, tmp_path / "walk.png", "--interpolate", between).exists()
  status = sample.main([f"--run={run}", f"--out={tmp_path / 'pairs.png'}",
                        f"--reconstruct={tmp_path / 'out'}"])
  assert status == (0 if name == "bigbigan" else 2)


# ---- What is refused ----------------------------------------------------------------------------


REFUSED = {
    "--out=x.jpg": "--out=x.jpg: must be a .png file or a .zip file or a folder",
    "--out=x.webp": "--out=x.webp: must be a .png",
    "--out=x.zip --interpolate --seed=1,2": "a .png file or a .webp file with --interpolate",
    "--out=setup.cfg": "--out=setup.cfg: must be a",
    "--out=docs": "--out=docs: exists; choose another name, or remove it",
    "--out=x --classes=3,10": "class '10': the classes are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9.",
    "--out=x --classes=three": "class 'three': the classes are 0, 1, 2",
    "--out=x.png --balanced": "--balanced: is for a data set of all classes; leave it out, since",
    "--out=x --balanced --classes=3": "is for a data set of all classes; leave it out, or --cla",
    "--out=x --truncation=0": "--truncation=0: must be above 0, such as 0.5",
    "--out=x --truncation=nan": "--truncation=nan: must be above 0",
    "--out=x --count=0": "--count=0: must be at least 1",
    "--out=x --seed=4294967296": "--seed=4294967296: must be below 2 ** 32",
    "--out=x --seed=1,2": "--seed: only --interpolate takes several; give one",
    "--out=x --standing_statistics=0": "'0': must be a number of passes, such as 16",
    "--out=x --step=newest": "'newest': must be the step of a checkpoint, or 'best'",
    "--out=x.png --interpolate": "--interpolate: needs two seeds or classes: --seed=1,2 or",
    "--out=x.png --interpolate --seed=1,2 --count=1": "--count=1: must be at least 2",
    "--out=x.png --interpolate --seed=1,2,3 --classes=1,2": "no path through 3 seeds and 2 classes",
    "--out=x.png --reconstruct=gone": "gone: no such folder or file; write a folder",
    "--out=x.png --reconstruct=docs": "the generator needs the classes of the images",
    "--out=x.png --reconstruct=docs --seed=1": "--reconstruct: does not draw latents",
    "--out=x.png --reconstruct=docs --interpolate": "not allowed with argument",
    "--out=x --gin_param=SNGANGenerator.width_multiplyer=1": "Did you mean 'width_multiplier'"}


@pytest.mark.parametrize("words", REFUSED)
def test_a_bad_command_is_one_line(words, run, loaded, capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  if "--step" not in words and "--gin_param" not in words:
    monkeypatch.setattr(load, "load_run", lambda *arguments: loaded)
  assert sample.main([f"--run={run}", *words.split()]) == 2
  shown = capsys.readouterr()
  assert REFUSED[words] in shown.err and len(shown.err.splitlines()) == 1
  assert not pathlib.Path("x").exists() and not pathlib.Path("x.png").exists()


# ---- What a command asks of a run ---------------------------------------------------------------


@pytest.mark.parametrize("flag, step", [("--step=7", 7), ("--step=best", "best"), ("", None)])
@pytest.mark.parametrize("command", ["sample", "export", "play", "evaluate"])
def test_each_command_loads_the_step_that_is_named(command, flag, step, run, tmp_path, monkeypatch):
  if command == "play":
    pytest.importorskip("pygame")
  asked = []

  def load_run(run, step, *_):
    asked.append(step)
    raise UsageError("that is enough")
  monkeypatch.setattr(load, "load_run", load_run)
  flags = {"evaluate": [f"--fake={run}", "--real=digits", "--metrics=swd"],
           "play": [f"--run={run}"]}
  module = importlib.import_module(f"experiments.{command}")
  words = flags.get(command, [f"--run={run}", f"--out={tmp_path / 'out'}"])
  assert module.main([*words, *[flag] * bool(flag)]) == 2
  assert asked == [step]


def test_standing_statistics_are_of_codes_that_are_truncated_as_the_samples(
    run, loaded, loaded_once, tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr(sample.sampling, "set_standing_statistics",
                      lambda gan, *settings: asked.append((gan, *settings)))
  for number, flags in enumerate((["--truncation=0.5"], [])):
    sampled(run, tmp_path / f"{number}", "--count=1", "--standing_statistics=4", *flags)
  assert asked == [(loaded[0].module, 4, 0.5), (loaded[0].module, 4, None)]
