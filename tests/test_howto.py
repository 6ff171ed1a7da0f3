"""The tasks of "How-to": the commands of a page, typed in a folder of their own, in small."""

import glob
import pathlib
import re
import zipfile

from benchmarks.feature_parity import random_tensors, shapes
from models.metrics.extractors import inception
from tests import pages
from tests.models.metrics.torch_writer import write_weights
from tests.programs import logs
from tests.programs.processes import forked

import numpy as np
import pytest
from PIL import Image

STEPS = ["train.steps = 4", "train.log_every = 1", "train.eval_every = 0",
         "train.checkpoint_every = 2", "train.global_batch_size = 16"]
DIGITS = [*STEPS, "SNGANGenerator.width_multiplier = 0.0625",
          "SNGANDiscriminator.width_multiplier = 0.125",
          "Encoder.width_multiplier = 0.125", "SNGAN.discriminator_updates = 1"]
EAGER = "--eager"  # To compile a step takes longer than these few steps do.
NARROW = [f"R3GAN{network}.{setting}" for network in ("Generator", "Discriminator")
          for setting in ("widths = (8, 8, 8, 8, 8, 8, 8)", "blocks = 1")]
IMAGES = [*STEPS, *NARROW, "train.steps = 1", "train.global_batch_size = 2"]


def commands(page: str, heading: str) -> list[list[str]]:
  """The words of the commands of this project below a heading of a page of "How-to"."""
  file = pages.ROOT / f"docs/howto/{page}.md"
  lines = file.read_text().splitlines()
  first = lines.index(f"## {heading}") + 1
  ends = [number for number, line in enumerate(lines, 1) if line.startswith("## ")]
  last = next((number for number in ends if number > first), len(lines) + 1)
  return [words for block in pages.blocks_of(file) if block.language == "bash"
          and first < int(block.where.rpartition(":")[2]) < last
          for words in pages.commands_of(block) if words[0] in ("python", "replicator")]


def typed(folder: pathlib.Path, words: list[str], *more: str, bindings: list[str] | None = None,
          status: int = 0) -> str:
  """Runs a command in the folder, with more flags and gin bindings; what it prints."""
  expanded = [each for word in words for each in sorted(glob.glob(word, root_dir=folder)) or [word]]
  program = expanded[1:] if words[0] == "python" else ["-m", *expanded]
  done = forked(*program, *more, *(f"--gin_param={binding}" for binding in bindings or []),
                cwd=folder, status=status, WANDB_ERROR_REPORTING="false", HOME=str(folder))
  return done.stdout + done.stderr


def draw(folder: pathlib.Path, classes: tuple[str, ...], seed: int = 0) -> None:
  """Draws three images of 256 pixels for each class."""
  generator = np.random.default_rng(seed)
  for name in classes:
    (folder / name).mkdir(parents=True)
    for i in range(3):
      pixels = generator.integers(0, 256, [256, 256, 3], np.uint8)
      Image.fromarray(pixels).save(folder / name / f"{i}.png")


@pytest.mark.slow
@pytest.mark.parametrize("heading, data, classes", [
    ("Images of 256 pixels", "photos", ("cat", "dog")),
    ("A folder of one class", "faces", ("all",))])
def test_a_gan_trains_on_own_images_of_256_pixels(heading, data, classes, tmp_path):
  draw(tmp_path / data, classes)
  (words,) = commands("images", heading)
  assert "data        ImageFolder, " in typed(tmp_path, words, EAGER, bindings=IMAGES)
  (run,) = (tmp_path / "runs").iterdir()
  assert np.isfinite(logs.rows(run)[-1]["loss/generator"])


@pytest.mark.slow
def test_a_run_stops_early_is_sampled_at_its_best_and_resumes_on_other_replicas(tmp_path):
  (early,) = commands("train", "Stop early")
  train, sample = commands("samples", "50,000 samples of the best checkpoint")
  (resume,) = commands("resume", "On other hardware or replicas")
  printed = typed(tmp_path, train, *early[5:], EAGER, bindings=[
      *DIGITS, "train.eval_every = 1", "EarlyStopping.patience = 1",
      "EarlyStopping.best_is = 'max'", "Checkpoints.best_is = 'max'"])
  assert "default, 1 replica" in printed
  assert "stopped early at step 1: eval/classifier_frechet_distance has not improved" in printed
  typed(tmp_path, sample, "--count=20")
  names = zipfile.ZipFile(tmp_path / "best.zip").namelist()
  assert sum(name.endswith(".png") for name in names) == 20
  printed = typed(tmp_path, resume, EAGER, bindings=[*DIGITS, "Replicator.logical_cpus = 2"])
  assert "mirrored, 2 replicas" in printed
  steps = [row["step"] for row in logs.rows(tmp_path / "runs/digits") if "loss/generator" in row]
  assert steps == [1, 2, 3, 4]


@pytest.mark.slow
def test_an_agent_trains_in_an_environment_with_arguments_and_wrappers(tmp_path):
  (tmp_path / "models").mkdir()
  for block in pages.blocks_of(pages.ROOT / "docs/howto/environments.md"):
    if block.title or (block.language == "gin" and "my_wrappers" in block.text):
      (tmp_path / (block.title or "my_car.gin")).write_text(block.text)
  words, *_ = commands("environments", "Choose one")
  typed(tmp_path, words, EAGER, f"--workdir={tmp_path / 'run'}", bindings=[
      *STEPS, "RateLimiter.learning_starts = 1100", "Exploration.random_steps = 1100",
      "train.eval_every = 4", "EpisodeEvaluator.episodes = 1",
      "Replicator.jit_compile = False", "train.steps_per_call = 1"])
  last = logs.rows(tmp_path / "run")[-1]
  assert np.isfinite(last["loss/critics"]) and last["environment_steps"] >= 1100
  assert 10 < abs(last["eval/return"]) < 100  # By 0.1 in each of 1,000 steps at most.


@pytest.mark.slow
def test_a_step_in_half_precision_is_profiled(tmp_path):
  (profile,) = commands("speed", "Profile a slow step")
  (mixed,) = commands("speed", "Mixed precision")
  printed = typed(tmp_path, profile, mixed[-1], EAGER,
                  bindings=[*DIGITS, "Profile.first = 2", "Profile.last = 3"])
  assert "1 replica, mixed_bfloat16" in printed
  assert re.search(r"profile +steps 2 to 3: .* input \d+%, step \d+%", printed)


@pytest.mark.slow
def test_fid_of_two_folders_with_a_local_file_of_weights(tmp_path):
  draw(tmp_path / "photos", ("cat", "dog"))
  draw(tmp_path / "generated", ("all",), seed=1)
  _, words = commands("metrics", "FID of two folders")
  file = words[-1].removeprefix("--features=")
  write_weights(tmp_path / file, random_tensors(shapes(inception.build(), inception.norm_of)))
  assert "Fréchet distance (Inception 2015 with weights " in typed(tmp_path, words)


@pytest.mark.slow
def test_a_sweep_is_compared(tmp_path):
  sweep, _ = commands("sweeps", "Run a sweep")
  (compare,) = commands("sweeps", "Compare trials, or any runs")
  params = ["sweep.seeds = [1]", "sweep.grid = {'SNGAN.latent_dim': [8, 12]}",
            "sweep.metric = 'loss/encoder'", f"sweep.params = {DIGITS}"]
  printed = typed(tmp_path, sweep, *(f"--sweep_param={param}" for param in params))
  assert "2 of 2 done" in printed
  assert "SNGAN.latent_dim" in typed(tmp_path, compare)
  assert (tmp_path / "compare.html").exists()


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_run_again(tmp_path):
  (replay,) = commands("nan", "Run the failing step again")
  train = ["python", "-m", "experiments.sngan", "--gin_file=sngan_digits.gin",
           "--workdir=runs/digits"]
  broken = [*DIGITS, "linear.initial = 1e38",  # The encoder's: step 2 fails, not step 1.
            "discriminator/linear.initial = 0.0", "generator/linear.initial = 0.0"]
  assert "error: step 2: loss/encoder is nan" in typed(
      tmp_path, train, EAGER, bindings=broken, status=1)
  printed = typed(tmp_path, replay)
  assert "trained     from step 0 to step 1" in printed
  assert "returned    loss/encoder nan\n" in printed
  assert re.search(r"first       \w+ has \d+ .* at .*\.py:\d+", printed)
