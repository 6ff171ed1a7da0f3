"""SN-GAN with an encoder: its metrics, its variants, and the default job, which learns."""

import numpy as np
import pytest

from tests.experiments.test_gans import launch
from tests.experiments.tiny_gans import MIRRORED, SCALARS, assert_same_training, train
from tests.programs.capabilities import eagerly
from tests.programs.logs import rows
from tests.programs.processes import forked

MEASURED = ["train.steps = 2", "train.eval_every = 2", "train.checkpoint_every = 2",
            "train.precision = 'float64'",
            "SampleEvaluator.quality = @FeatureMetrics", "SampleEvaluator.rows = 2",
            "FeatureMetrics.num_samples = 600", "FeatureMetrics.metrics = ['fid', 'is', 'prdc']"]


@pytest.mark.slow
def test_training_and_metrics_are_the_same_on_any_replicas_and_in_two_processes(tmp_path):
  with eagerly():  # To compile a step would take longer than the two steps do.
    train(tmp_path / "one", "sngan", *MEASURED)
    train(tmp_path / "mirrored", "sngan", *MEASURED, *MIRRORED[2])
  launch(tmp_path / "processes", "sngan", *MEASURED,
         "Replicator.strategy = 'multi_worker_mirrored'")
  expected, *others = ([{name: value for name, value in row.items() if name.startswith("eval/")}
                        for row in rows(tmp_path / name)]
                       for name in ("one", "mirrored", "processes"))
  for name in ("mirrored", "processes"):
    assert_same_training(tmp_path / name, tmp_path / "one")
  assert [len(row) for row in expected] == [7, 0, 7]  # With the reconstruction error.
  for found in others:
    for row, wanted in zip(found, expected, strict=True):
      assert row == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
def test_classes_and_half_precision_train(tmp_path):
  with eagerly():
    losses = train(tmp_path, "sngan", "train.steps = 2", "SNGAN.conditional = True",
                   "train.precision = 'mixed_bfloat16'")
  assert losses.shape == (2, 6) and np.isfinite(losses).all()


@pytest.mark.slow
def test_default_job_learns_the_digits(tmp_path):
  # A fifth of its steps, of half of its images and with narrower networks: all take minutes.
  done = forked("-m", "experiments.sngan", "--gin_file=configs/sngan_digits.gin",
                f"--workdir={tmp_path}", *(f"--gin_param={setting}" for setting in (
                  "train.steps = 400", "train.eval_every = 400", "train.global_batch_size = 64",
                  "SNGANGenerator.width = 0.125", "SNGANDiscriminator.width = 0.25",
                  "Encoder.width = 0.25", "LinearDecay.learning_rate = 8e-4",
                  "generator/wrap_optimizer.ema_decay = 0.98")))
  assert done.stderr == ""
  logged = rows(tmp_path)
  evaluations = [row for row in logged if "eval/classes_covered" in row]
  distances = [row["eval/classifier_frechet_distance"] for row in evaluations]
  assert distances[-1] <= distances[0] / 10
  assert evaluations[-1]["eval/classes_covered"] == 10
  errors = [row["eval/reconstruction_error"] for row in evaluations]
  assert errors[-1] <= errors[0] / 2
  assert all(np.isfinite(row[name]) for row in logged for name in SCALARS & row.keys())
  for name in ("config.gin", "run.json", "report.html", "checkpoints", "samples"):
    assert (tmp_path / name).exists()
