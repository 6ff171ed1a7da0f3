"""SN-GAN with an encoder: its metrics, its variants, and the default job, which learns."""

import numpy as np
import pytest

from replicator import UsageError
from tests.experiments.test_gans import launch
from tests.experiments.tiny_gans import MIRRORED, SCALARS, train
from tests.programs.capabilities import eagerly
from tests.programs.logs import rows
from tests.programs.processes import python

MEASURED = ["train.steps = 1", "train.eval_every = 1", "train.precision = 'float64'",
            "SampleEvaluator.quality = @FeatureMetrics", "SampleEvaluator.rows = 2",
            "FeatureMetrics.num_samples = 600", "FeatureMetrics.metrics = ['fid', 'is', 'prdc']"]


@pytest.mark.slow
def test_metrics_are_the_same_on_any_replicas_and_in_two_processes(tmp_path):
  with eagerly():  # To compile a step would take longer than the one step does.
    train(tmp_path / "one", "sngan", *MEASURED)
    train(tmp_path / "mirrored", "sngan", *MEASURED, *MIRRORED[2])
  launch(tmp_path / "processes", "sngan", *MEASURED,
         "Replicator.strategy = 'multi_worker_mirrored'", flags=("--eager",))
  expected, *others = ([{name: value for name, value in row.items() if name.startswith("eval/")}
                        for row in rows(tmp_path / name)]
                       for name in ("one", "mirrored", "processes"))
  assert len(expected) == 2 and len(expected[0]) == 7  # With the reconstruction error.
  for found in others:
    for row, wanted in zip(found, expected, strict=True):
      assert row == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
def test_classes_and_half_precision_train(tmp_path):
  losses = train(tmp_path, "sngan", "train.steps = 3", "SNGAN.conditional = True",
                 "train.precision = 'mixed_bfloat16'")
  assert losses.shape == (3, 6) and np.isfinite(losses).all()


def test_the_adversarial_encoder_is_another_experiment(tmp_path):
  with pytest.raises(UsageError, match=r"SNGAN\.bigan is gone: .* python -m experiments\.bigan"):
    train(tmp_path, "sngan", "SNGAN.bigan = True")


@pytest.mark.slow
def test_default_job_learns_the_digits(tmp_path):
  # Its first steps, of half of its images: all take minutes.
  done = python("-m", "experiments.sngan", "--gin_file=configs/sngan_digits.gin",
                "--gin_param=train.steps = 600", "--gin_param=train.eval_every = 600",
                "--gin_param=train.global_batch_size = 64", f"--workdir={tmp_path}")
  assert done.stderr == ""
  logged = rows(tmp_path)
  evaluations = [row for row in logged if "eval/classes_covered" in row]
  distances = [row["eval/classifier_frechet_distance"] for row in evaluations]
  assert distances[-1] <= distances[0] / 10
  assert evaluations[-1]["eval/classes_covered"] == 10
  assert all(np.isfinite(row[name]) for row in logged for name in SCALARS & row.keys())
  for name in ("config.gin", "run.json", "report.html", "checkpoints", "samples"):
    assert (tmp_path / name).exists()
