"""A run that is killed again and again equals an undisturbed one, byte for byte."""

import contextlib
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from replicator import atomic
from replicator.training.checkpoints import store
from tests.programs.forks import in_a_fork
from tests.programs.logs import rows

import pytest

pytestmark = pytest.mark.slow

HANG_SECONDS = 600


class Run(NamedTuple):
  """A short training, how it is started, and how often it is killed."""

  experiment: str
  file: str
  bindings: list[str]
  launcher: Sequence[str] = ()
  kills: int = 2

  def command(self, workdir: pathlib.Path) -> list[str]:
    return [*self.launcher, sys.executable, "-m", f"experiments.{self.experiment}",
            f"--gin_file=configs/{self.file}.gin", f"--workdir={workdir}",
            *(f"--gin_param={binding}" for binding in [*COMMON, *self.bindings])]


COMMON = ["train.steps = 80", "train.log_every = 10", "train.eval_every = 40",
          "train.checkpoint_every = 4", "train.steps_per_call = 2", "train.global_batch_size = 16",
          "Replicator.jit_compile = False"]
_GAN = ["DCGANGenerator.base_channels = 8", "DCGANDiscriminator.base_channels = 8",
        "SampleQuality.num_samples = 100"]
RUNS = {
    "gan": Run("gan", "dcgan_digits", _GAN, kills=3),
    "gan in two processes": Run(
        "gan", "dcgan_digits", [*_GAN, "Replicator.strategy = 'multi_worker_mirrored'"],
        [sys.executable, "-m", "replicator", "launch", "--workers=2", "--"]),
    # Images of the pool, and the order of both domains.
    "cyclegan": Run("cyclegan", "cyclegan_shapes16", [
        "Shapes.size = 200", "CycleGANGenerator.base_channels = 4", "CycleGANGenerator.blocks = 1",
        "PatchDiscriminator.base_channels = 4", "train.global_batch_size = 4"]),
    # Codes that the replicas count, and restart.
    "vqgan": Run("vqgan", "vqgan_shapes32", [
        "VQGAN.quantizer = @Codebook", "Codebook.num_codes = 16", "Shapes.size = 200",
        "VQGANAutoencoder.base_channels = 4", "PatchDiscriminator.base_channels = 4",
        "FeatureMetrics.metrics = []",
        "train.global_batch_size = 4"]),
    # A teacher with a center.
    "self_supervision": Run("self_supervision", "self_supervision_digits", [
        "SelfSupervision.loss = @DINO", "ResNet.width_multiplier = 0.25"]),
    "domain_adaptation": Run("domain_adaptation", "domain_adaptation_digits", [
        "DomainAdaptation.adaptation_start = 20"]),
    "diffusion": Run("diffusion", "diffusion_digits", [
        "DenoisingMLP.units = 8", "SampleQuality.num_samples = 100"]),
    # An update of three, and averaged weights.
    "dmd2": Run("dmd2", "dmd2_gaussians", [
        "DenoisingMLP.units = 8", "generator/wrap_optimizer.every = 3"]),
    "maml": Run("maml", "maml_sinusoids", ["train_maml.new_tasks = 10"]),
    # A policy that remembers, and sequences of a replay that is full.
    "world_model": Run("world_model", "world_model_pendulum", [
        "Environments.number = 2", "Environments.max_episode_steps = 25",
        "RateLimiter.learning_starts = 60", "RateLimiter.update_ratio = 0.25",
        "Exploration.random_steps = 40",
        "Replay.capacity = 80", "SequenceReplay.length = 4", "Dreamer.horizon = 3",
        "RSSM.deterministic = 8", "RSSM.latents = 3", "RSSM.classes = 4", "RSSM.units = 8",
        "NormalizedMLP.units = 8", "WorldModel.embedding = 8", "TwoHot.bins = 11",
        "EpisodeEvaluator.episodes = 2", "EpisodeEvaluator.picture = True"])}


def finish(run: Run, workdir: pathlib.Path) -> str:
  """Runs to the end; returns stdout."""
  done = subprocess.run(run.command(workdir), capture_output=True, text=True, timeout=HANG_SECONDS)
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


def kill(run: Run, workdir: pathlib.Path, moment: random.Random) -> bool:
  """Starts the run, and kills it at some moment after its next checkpoint.

  Returns:
    False if the run ended before, because this process was too slow to kill it.
  """
  saved = newest(workdir)
  with subprocess.Popen(run.command(workdir), stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL) as process:
    while process.poll() is None and newest(workdir) == saved:
      time.sleep(0.005)
    time.sleep(moment.uniform(0.0, 0.15))
    process.kill()
    assert process.wait() in (0, -signal.SIGKILL)
    return process.returncode != 0


def newest(workdir: pathlib.Path) -> int:
  return max(store.steps_of(workdir / "checkpoints"), default=0)


def left(workdir: pathlib.Path) -> dict:
  """The files of a run, without its times."""
  return {
      "variables": {path: (value.dtype, value.shape, value.tobytes())
                    for path, value in store.read(workdir / "checkpoints").items()},
      "metrics": rows(workdir),
      "samples": {file.name: file.read_bytes() for file in workdir.glob("samples/*")},
      "folders": sorted(path.name for path in (workdir / "checkpoints").iterdir())}


@pytest.mark.parametrize("name", RUNS)
@in_a_fork
def test_a_run_that_is_killed_equals_one_that_is_not(name, tmp_path):
  run = RUNS[name]
  finish(run, tmp_path / "whole")
  expected = left(tmp_path / "whole")
  assert [row["step"] for row in expected["metrics"]] == [*range(0, 81, 10)]
  assert name == "maml" or "step-00000080.png" in expected["samples"]
  moment = random.Random(0)
  killed, runs = 0, 0
  while killed < run.kills:  # One run as a rule, another one if that ends before.
    workdir = tmp_path / f"killed-{runs}"
    while killed < run.kills and kill(run, workdir, moment):
      killed += 1
    assert "resumed at step" in finish(run, workdir)
    found = left(workdir)
    for what in expected:
      assert found[what] == expected[what], what
    runs += 1


# ---- Disks --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
  """A file system of 8 MiB; skips the test if it is not allowed to mount one."""
  folder = tmp_path / "disk"
  folder.mkdir()
  mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
  if subprocess.run(mount, capture_output=True).returncode:
    pytest.skip("no right to mount a file system")
  yield folder
  subprocess.run(["umount", str(folder)], check=True)


def tiny(workdir: pathlib.Path, steps: int) -> list[str]:
  """The command that trains two tiny networks and keeps all checkpoints."""
  settings = [f"train.steps = {steps}", "train.log_every = 10", "train.eval_every = 0",
              "train.checkpoint_every = 10", "Checkpoints.keep_last = 100000"]
  return [sys.executable, "-m", "tests.programs.two_networks", f"--workdir={workdir}",
          *(f"--gin_param={setting}" for setting in settings)]


@in_a_fork
def test_a_full_disk_ends_the_run_and_spares_the_checkpoints(small_disk):
  workdir = small_disk / "run"
  with subprocess.Popen(tiny(workdir, 1_000_000), stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE, text=True) as process:
    while newest(workdir) < 30:
      assert process.poll() is None
      time.sleep(0.005)
    with contextlib.suppress(OSError), (small_disk / "other").open("wb") as other:
      while True:
        other.write(bytes(4096))
        other.flush()
    errors = process.communicate(timeout=HANG_SECONDS)[1].splitlines()
  assert process.returncode == 1
  assert len(errors) == 1, errors
  assert re.match(rf"error: {workdir}\S*: .*No space left on device.* are intact$",
                  errors[0]), errors
  folders = list((workdir / "checkpoints").iterdir())
  assert len(folders) >= 3
  for folder in folders:
    atomic.check(folder)
  (small_disk / "other").unlink()
  last = newest(workdir)
  done = subprocess.run(tiny(workdir, last + 10), capture_output=True, text=True,
                        timeout=HANG_SECONDS)
  assert (done.returncode, done.stderr) == (0, "")
  assert f"resumed at step {last}\n" in done.stdout
