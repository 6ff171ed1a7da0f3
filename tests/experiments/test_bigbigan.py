"""BigBiGAN: the strategy does not change its training, and what it holds out trains nothing."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import replicator
from experiments import bigbigan
from models.vision.images.image_source import read
from replicator.app import config
from replicator.checkpoints import checkpoint
from replicator.errors import UsageError
from replicator.step import context
from tests.programs.logs import rows

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ["BigGANGenerator.width = 2", "BigGANDiscriminator.width = 2", "BigBiGANEncoder.width = 2",
         "BigBiGANDiscriminator.units = 8", "BigBiGANEncoder.units = 8", "BigBiGAN.latent_dim = 4",
         "train.global_batch_size = 32", "train.log_every = 1", "train.eval_every = 0",
         "train.checkpoint_every = 0"]
SCALARS = ("discriminator", "generator", "encoder", "d_accuracy", "code_scale", "sample_variance",
           "data_variance")

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def configure(*bindings: str) -> None:
  config.parse([str(ROOT / "configs" / "bigbigan_digits.gin")], [*SMALL, *bindings])


def logged(workdir: pathlib.Path) -> np.ndarray:
  """The scalars of the step at every log point: [points, scalars]."""
  return np.array([[row[name] for name in SCALARS] for row in rows(workdir)])


def train(workdir: pathlib.Path, *bindings: str) -> np.ndarray:
  configure(*bindings)
  bigbigan.bigbigan(str(workdir))
  return logged(workdir)


def final_variables(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """The floating variables of the last checkpoint: networks, slots and averages."""
  return {name: value for name, value in checkpoint.read(workdir / "checkpoints").items()
          if tf.as_dtype(value.dtype).is_floating}


def assert_same_training(workdir: pathlib.Path, reference: pathlib.Path) -> None:
  losses, variables = logged(workdir), final_variables(workdir)
  assert losses.shape == (STEPS, len(SCALARS))
  np.testing.assert_allclose(losses, logged(reference), rtol=1e-9)
  assert {path.split("/")[0] for path in variables} == {
      "generator", "discriminator", "encoder", "optimizers"}
  for name, expected in final_variables(reference).items():
    np.testing.assert_allclose(variables[name], expected, rtol=1e-8, atol=1e-8, err_msg=name)


STRATEGIES = {
    "one device": ["Replicator.strategy = 'one_device'"],
    "mirrored 2": ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"],
    "mirrored 4": ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 4"],
    "central storage 2": ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"],
}
STEPS = 20
FLOAT64 = [f"train.steps = {STEPS}", "train.precision = 'float64'",
           f"train.checkpoint_every = {STEPS}"]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp("one")
  train(workdir, *FLOAT64, *STRATEGIES["one device"])
  return workdir


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mirrored 2", "mirrored 4", "central storage 2"])
def test_strategy_does_not_change_the_training_in_float64(name, one_device, tmp_path):
  train(tmp_path, *FLOAT64, *STRATEGIES[name])
  assert_same_training(tmp_path, one_device)


@pytest.mark.slow
def test_two_processes_do_not_change_the_training_in_float64(one_device, tmp_path):
  bindings = [*SMALL, *FLOAT64, "Replicator.strategy = 'multi_worker_mirrored'"]
  done = subprocess.run(
      [sys.executable, "-m", "replicator.launch", "--workers=2", "--", sys.executable, "-m",
       "experiments.bigbigan", "--gin_file=configs/bigbigan_digits.gin",
       *(f"--gin_param={binding}" for binding in bindings), f"--workdir={tmp_path}"],
      cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  assert_same_training(tmp_path, one_device)


@pytest.mark.slow
def test_micro_batches_are_the_same_on_any_replicas(tmp_path):
  # Statistics cover one micro-batch over all replicas, not the full batch.
  for name in ("one device", "mirrored 2"):
    train(tmp_path / name, *FLOAT64, *STRATEGIES[name], "microbatch.n = 4")
    assert_same_training(tmp_path / name, tmp_path / "one device")


@pytest.mark.slow
def test_step_compiles_under_xla():
  configure("BigBiGAN.discriminator_updates = 1")
  gan = bigbigan.BigBiGAN((8, 8, 1))

  @tf.function(jit_compile=True, autograph=False)
  def step(number, batch):
    with context.entered(number, xla=True):
      return gan(batch)

  scalars = step(tf.constant(0, tf.int64), {"image": tf.zeros([16, 8, 8, 1], tf.uint8)})
  assert all(np.isfinite(value) for value in scalars.values())


def test_the_configuration_determines_the_updates_of_a_step():
  configure("BigBiGAN.discriminator_updates = 2")
  gan = bigbigan.BigBiGAN((8, 8, 1))
  images = np.random.default_rng(0).integers(0, 256, [16, 8, 8, 1]).astype(np.uint8)
  with context.entered(tf.constant(0, tf.int64)):  # Compiling it would take longer.
    scalars = gan({"image": images})
  # The last update takes this part of the batch.
  expected = np.mean(np.var(images[1::2] / 127.5 - 1.0, axis=0))
  np.testing.assert_allclose(scalars["data_variance"], expected, rtol=1e-5)
  assert 0 <= scalars["d_accuracy"] <= 1 and scalars["code_scale"] > 0
  updates = {name: int(optimizer.keras_optimizer.iterations.numpy())
             for name, optimizer in gan.optimizers.items()}
  assert updates == {"discriminator": 2, "generator": 1, "encoder": 1}


def test_no_held_out_image_is_trained_on(monkeypatch, tmp_path):
  given = []
  monkeypatch.setattr(replicator, "train", lambda step, data, evaluate, workdir: given.append(data))
  evaluators = []
  monkeypatch.setattr(bigbigan, "BigBiGANEvaluator", lambda *parts: evaluators.append(parts))
  configure("bigbigan.held_out = 0.25")
  bigbigan.bigbigan(str(tmp_path))
  ([train_on], [(_, also_train_on, held_out)]) = given, evaluators
  assert train_on is also_train_on
  assert (train_on.size, held_out.size) == (1348, 449)
  assert not set(train_on._indices) & set(held_out._indices)


@pytest.mark.slow
def test_the_evaluation_probes_the_encoder_on_held_out_images(tmp_path):
  configure("SampleQuality.num_samples = 50", "BigBiGANEvaluator.probe_images = 300")
  data = bigbigan.Digits()
  train_on, held_out = bigbigan.hold_out(data, 0.2)
  gan = bigbigan.BigBiGAN(data.image_shape)
  evaluate_samples = bigbigan.SampleEvaluator(data, str(tmp_path), reconstructed=held_out)
  evaluation = bigbigan.BigBiGANEvaluator(evaluate_samples, train_on, held_out)(gan)
  images, labels = zip(read(train_on, np.arange(300)), read(held_out, np.arange(300)), strict=True)
  codes = [gan.encode(part)[0].numpy() for part in images]
  expected = bigbigan.linear_probe(codes[0], labels[0], codes[1], labels[1])
  assert evaluation.scalars["probe_accuracy"] == expected
  shown, shown_labels = read(held_out, np.arange(32) * held_out.size // 32)
  np.testing.assert_allclose(evaluation.scalars["reconstruction_error"], np.mean(
      (shown / 127.5 - 1 - gan.reconstruct(shown, shown_labels)) ** 2), rtol=1e-5)
  assert evaluation.picture.dtype == np.uint8


@pytest.mark.parametrize("binding", ["latent_dim = 0", "discriminator_updates = -1"])
def test_a_number_below_one_is_refused(binding):
  configure(f"BigBiGAN.{binding}")
  with pytest.raises(UsageError, match=f"BigBiGAN.{binding}: must be at least 1"):
    bigbigan.BigBiGAN((8, 8, 1))


@pytest.mark.slow
def test_the_digits_job_learns_codes_that_a_linear_probe_reads(tmp_path):
  config.parse([str(ROOT / "configs" / "bigbigan_digits.gin")], [])
  bigbigan.bigbigan(str(tmp_path))
  evaluations = [row for row in rows(tmp_path) if "eval/probe_accuracy" in row]
  assert evaluations[-1]["eval/probe_accuracy"] >= 0.9
  assert evaluations[-1]["eval/classes_covered"] == 10
  assert evaluations[-1]["eval/reconstruction_error"] < evaluations[0]["eval/reconstruction_error"]
