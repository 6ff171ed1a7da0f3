"""SN-GAN with an encoder: its metrics, and the default job, which learns."""

from tests.experiments.tiny_gans import MIRRORED, settings, train
from tests.programs.capabilities import eagerly
from tests.programs.logs import assert_same_runs, rows
from tests.programs.processes import forked, launched

import numpy as np
import pytest

MEASURED = ["train.steps = 2", "train.eval_every = 2", "train.checkpoint_every = 2",
            "train.precision = 'float64'",
            "SampleEvaluator.quality = @FeatureMetrics", "SampleEvaluator.rows = 2",
            "FeatureMetrics.num_samples = 600", "FeatureMetrics.metrics = ['fid', 'is', 'prdc']"]


@pytest.mark.slow
def test_training_and_metrics_are_the_same_on_any_replicas_and_in_two_processes(tmp_path):
  with eagerly():  # To compile a step would take longer than the two steps do.
    train(tmp_path / "one", "sngan", *MEASURED)
    train(tmp_path / "mirrored", "sngan", *MEASURED, *MIRRORED[2])
  launched(["--workers=2"], "experiments.sngan", "--gin_file=configs/sngan_digits.gin",
           f"--workdir={tmp_path / 'processes'}", bindings=settings(
               "sngan", *MEASURED, "Replicator.strategy = 'multi_worker_mirrored'"))
  assert [sum(name.startswith("eval/") for name in row) for row in rows(tmp_path / "one")] == [
      7, 0, 7]  # With the reconstruction error.
  for name in ("mirrored", "processes"):
    assert_same_runs(tmp_path / name, tmp_path / "one", of_evaluations=1e-6)


@pytest.mark.slow
def test_default_job_learns_the_digits(tmp_path):
  # A fifth of its steps, of half of its images and with narrower networks: all take minutes.
  done = forked("-m", "experiments.sngan", "--gin_file=configs/sngan_digits.gin",
                f"--workdir={tmp_path}", *(f"--gin_param={setting}" for setting in (
                  "train.steps = 400", "train.eval_every = 400", "train.global_batch_size = 32",
                  "SNGANGenerator.width_multiplier = 0.125",
                  "SNGANDiscriminator.width_multiplier = 0.25",
                  "Encoder.width_multiplier = 0.25", "linear.initial = 8e-4",
                  "generator/wrap_optimizer.ema_decay = 0.98")))
  assert done.stderr == ""
  logged = rows(tmp_path)
  evaluations = [row for row in logged if "eval/classes_covered" in row]
  distances = [row["eval/classifier_frechet_distance"] for row in evaluations]
  assert distances[-1] <= distances[0] / 10
  assert evaluations[-1]["eval/classes_covered"] == 10
  errors = [row["eval/reconstruction_error"] for row in evaluations]
  assert errors[-1] <= errors[0] / 2
  assert all(np.isfinite(list(row.values())).all() for row in logged)
  for name in ("config.gin", "run.json", "report.html", "checkpoints", "samples"):
    assert (tmp_path / name).exists()
