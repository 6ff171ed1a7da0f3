"""SN-GAN with an encoder: the strategy does not change its training, and it learns."""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from experiments import sngan
from models.gan import networks
from replicator.app import config
from replicator.checkpoints import checkpoint
from replicator.step import context
from tests.programs.logs import rows
from tests.replicator.checkpoints import weights

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ["SNGANGenerator.width = 0.0625", "SNGANDiscriminator.width = 0.125", "Encoder.width = "
                                                                              "0.125",
         "train.global_batch_size = 32", "train.log_every = 1", "train.eval_every = 0",
         "train.checkpoint_every = 0"]
LOSSES = ("discriminator", "generator", "encoder")
SCALARS = (*LOSSES, "d_accuracy", "sample_variance", "data_variance")


pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def configure(*bindings: str) -> None:
  config.parse([str(ROOT / "configs" / "sngan_digits.gin")], [*SMALL, *bindings])


def logged(workdir: pathlib.Path) -> np.ndarray:
  """The scalars of the step at every log point: [points, scalars]."""
  return np.array([[row[name] for name in SCALARS] for row in rows(workdir)])


def train(workdir: pathlib.Path, *bindings: str) -> np.ndarray:
  configure(*bindings)
  sngan.sngan(str(workdir))
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


def run(*words: str) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True,
                        timeout=900, check=False)


def flags(*bindings: str) -> list[str]:
  return ["--gin_file=configs/sngan_digits.gin",
          *(f"--gin_param={binding}" for binding in [*SMALL, *bindings])]


STRATEGIES = {
    "one device": ["Replicator.strategy = 'one_device'"],
    "mirrored 2": ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"],
    "mirrored 4": ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 4"],
    "mirrored 8": ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 8"],
    "central storage 2": ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"],
}
STEPS = 50
FLOAT64 = [f"train.steps = {STEPS}", "train.precision = 'float64'",
           f"train.checkpoint_every = {STEPS}"]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp("one")
  train(workdir, *FLOAT64, *STRATEGIES["one device"])
  return workdir


@pytest.mark.parametrize("name", [
    "mirrored 2", pytest.param("mirrored 4", marks=pytest.mark.slow),
    pytest.param("central storage 2", marks=pytest.mark.slow),
    pytest.param("mirrored 8", marks=pytest.mark.slow)])
def test_strategy_does_not_change_the_training_in_float64(name, one_device, tmp_path):
  train(tmp_path, *FLOAT64, *STRATEGIES[name])
  assert_same_training(tmp_path, one_device)


@pytest.mark.slow
def test_two_processes_do_not_change_the_training_in_float64(one_device, tmp_path):
  done = run("replicator.launch", "--workers=2", "--", sys.executable, "-m", "experiments.sngan",
             *flags(*FLOAT64, "Replicator.strategy = 'multi_worker_mirrored'"),
             f"--workdir={tmp_path}")
  assert done.returncode == 0, done.stdout + done.stderr
  assert_same_training(tmp_path, one_device)


MEASURED = ["train.steps = 1", "train.eval_every = 1", "train.precision = 'float64'",
            "SampleEvaluator.quality = @FeatureMetrics", "SampleEvaluator.rows = 2",
            "FeatureMetrics.num_samples = 600", "FeatureMetrics.metrics = ['fid', 'is', 'prdc']"]


def evaluated(workdir: pathlib.Path) -> list[dict[str, float]]:
  return [{name: value for name, value in row.items() if name.startswith("eval/")}
          for row in rows(workdir)]


@pytest.mark.slow
def test_metrics_are_the_same_on_any_replicas_and_in_two_processes(tmp_path):
  for name in ("one device", "mirrored 4"):
    configure(*MEASURED, *STRATEGIES[name])
    sngan.sngan(str(tmp_path / name))
  done = run("replicator.launch", "--workers=2", "--", sys.executable, "-m", "experiments.sngan",
             *flags(*MEASURED, "Replicator.strategy = 'multi_worker_mirrored'"),
             f"--workdir={tmp_path / 'processes'}")
  assert done.returncode == 0, done.stdout + done.stderr
  expected = evaluated(tmp_path / "one device")
  assert len(expected) == 2 and len(expected[0]) == 7  # With the reconstruction error.
  for name in ("mirrored 4", "processes"):
    for found, wanted in zip(evaluated(tmp_path / name), expected, strict=True):
      assert found == pytest.approx(wanted, rel=1e-6), name


@pytest.fixture
def without_batch_statistics(monkeypatch):
  """Makes the networks normalize each example by itself."""
  for module in (networks.sngan, networks.sngan_blocks, networks.residual_blocks):
    monkeypatch.setattr(module, "GlobalBatchNorm", keras.layers.LayerNormalization)


@pytest.mark.slow
def test_micro_batches_do_not_change_the_training_in_float64(without_batch_statistics, tmp_path):
  for n in (1, 2, 4):
    train(tmp_path / str(n), *FLOAT64, *STRATEGIES["one device"], f"microbatch.n = {n}")
    assert_same_training(tmp_path / str(n), tmp_path / "1")


@pytest.mark.slow
def test_micro_batches_with_batch_norm_are_the_same_on_any_replicas(tmp_path):
  # Statistics cover one micro-batch over all replicas, not the full batch.
  for name in ("one device", "mirrored 2", "mirrored 4"):
    train(tmp_path / name, *FLOAT64, *STRATEGIES[name], "microbatch.n = 4",
          "train.global_batch_size = 64")
    assert_same_training(tmp_path / name, tmp_path / "one device")


@pytest.mark.slow
def test_parameter_server_trains_with_two_asynchronous_workers(tmp_path):
  done = run("replicator.launch", "--workers=2", "--ps=1", "--", sys.executable, "-m",
             "experiments.sngan", *flags("train.steps = 20", "train.log_every = 5",
                                         "Replicator.strategy = 'parameter_server'"),
             f"--workdir={tmp_path}")
  assert done.returncode == 0, done.stdout + done.stderr
  assert json.loads((tmp_path / "run.json").read_text())["num_workers"] == 2
  losses = logged(tmp_path)
  assert losses.shape == (4, len(SCALARS)) and np.isfinite(losses).all()


@pytest.mark.slow
def test_float32_agrees_over_the_first_steps(tmp_path):
  # Later, GAN dynamics amplify the rounding errors, so equality is proved in float64.
  one = train(tmp_path / "one", "train.steps = 5")
  two = train(tmp_path / "two", "train.steps = 5", *STRATEGIES["mirrored 2"])
  np.testing.assert_allclose(two, one, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("bindings", [
    ["SNGAN.bigan = True"], ["SNGAN.conditional = True", "train.precision = 'mixed_bfloat16'"]])
def test_variants_train(bindings, tmp_path):
  losses = train(tmp_path, "train.steps = 3", *bindings)
  assert losses.shape == (3, len(SCALARS)) and np.isfinite(losses).all()


@pytest.mark.slow
def test_a_run_that_starts_from_another_keeps_what_is_frozen_bit_for_bit(tmp_path):
  saving = ["train.steps = 8", "train.checkpoint_every = 8"]
  train(tmp_path / "first", *saving)
  train(tmp_path / "second", *saving, f"train.start_from = '{tmp_path}/first'",
        "StartFrom.frozen = {'discriminator': 1}")
  before, after = weights.saved(tmp_path / "first"), weights.saved(tmp_path / "second")
  frozen = weights.within(after, "discriminator/blocks/0/")
  # The kernels, biases and singular vectors of two convolutions and a shortcut.
  assert len(frozen) == 9 and frozen <= weights.equal(before, after)
  kernels = {name for name in after if name.endswith("/kernel")}
  assert weights.equal(before, after) & kernels == frozen & kernels


@pytest.mark.slow
def test_step_compiles_under_xla_with_static_shapes():
  # A TPU runs this. The compiler knows the batch size, so no dimension is dynamic.
  configure("SNGAN.discriminator_updates = 1")
  gan = sngan.SNGAN((8, 8, 1), 10)

  @tf.function(jit_compile=True, autograph=False)
  def step(number, batch):
    with context.entered(number, xla=True):
      return gan(batch)

  batch = {"image": tf.zeros([16, 8, 8, 1], tf.uint8), "label": tf.zeros([16], tf.int32)}
  graph = step.get_concrete_function(tf.constant(0, tf.int64), batch).graph
  dynamic = [o for op in graph.get_operations() if op.type in ("Conv2D", "MatMul")
             for o in op.outputs if not o.shape.is_fully_defined()]
  assert not dynamic
  assert all(np.isfinite(loss) for loss in step(tf.constant(0, tf.int64), batch).values())


def test_the_configuration_determines_the_updates_of_a_step():
  configure("SNGAN.discriminator_updates = 2")
  gan = sngan.SNGAN((8, 8, 1), 10)
  images = np.random.default_rng(0).integers(0, 256, [16, 8, 8, 1]).astype(np.uint8)
  [scalars] = replicator.Replicator().run(gan, {"image": images, "label": np.zeros(16, np.int32)})
  # The last update takes this part of the batch.
  expected = np.mean(np.var(images[1::2] / 127.5 - 1.0, axis=0))
  np.testing.assert_allclose(scalars["data_variance"], expected, rtol=1e-5)
  assert 0 <= scalars["d_accuracy"] <= 1 and scalars["sample_variance"] > 0
  updates = {name: int(optimizer.keras_optimizer.iterations.numpy())
             for name, optimizer in gan.optimizers.items()}
  assert updates == {"discriminator": 2, "generator": 1, "encoder": 1}


@pytest.mark.slow
def test_default_job_learns_the_digits(tmp_path):
  # Half of its steps: they take minutes.
  done = run("experiments.sngan", "--gin_file=configs/sngan_digits.gin",
             "--gin_param=train.steps = 1000", f"--workdir={tmp_path}")
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  logged = rows(tmp_path)
  evaluations = [row for row in logged if "eval/classes_covered" in row]
  distances = [row["eval/classifier_frechet_distance"] for row in evaluations]
  assert distances[-1] <= distances[0] / 10
  assert evaluations[-1]["eval/classes_covered"] == 10
  assert all(np.isfinite(row[name]) for row in logged for name in LOSSES if name in row)
  for name in ("config.gin", "run.json", "report.html", "checkpoints", "samples"):
    assert (tmp_path / name).exists()
