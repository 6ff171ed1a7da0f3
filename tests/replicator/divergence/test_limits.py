"""Limits of what is logged, and samples that collapse."""

import re

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError
from replicator.divergence.guard import Guard
from tests.programs.refusals import refusal
from tests.replicator.divergence.runs import MAY_COLLAPSE, history, train

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def test_a_limit_is_the_highest_value_that_passes():
  guard = Guard(limits={"d": 2.0, "grad_norm/g": 10})
  assert guard.divergence_in(1, history(d=[2.0, -9.0], grad_norm__g=[10.0, 1.0])) is None
  divergence = guard.divergence_in(3, history(d=[1.0, 2.5, 3.0], grad_norm__g=[1.0, 99.0, np.nan]))
  assert str(divergence) == "step 4: d is 2.5, over its limit of 2 (and 1 more)"
  assert divergence.offending == {"d": 2.5, "grad_norm/g": 99.0}
  assert divergence.recent["d"].tolist() == [2.0, -9.0, 1.0, 2.5]
  assert guard.is_sound is False  # In its last step, a gradient is NaN.


def test_a_size_that_only_a_broken_run_reaches_is_over_the_limit_of_all_others():
  guard = Guard(limits={"flops": 1e30})
  assert guard.divergence_in(1, history(
      loss=[9e18, -9e18], count=[1.7e9, 1.7e18], flops=[-1e20, 1e30])) is None
  for value, words in [(2e21, "2e+21"), (-2e21, "-2e+21")]:
    assert str(guard.divergence_in(3, history(loss=[1.0, value]))) == (
        f"step 4: loss is {words}, beyond 1e+19, the limit of any scalar that Guard.limits does "
        "not name")
    assert guard.is_sound  # It is finite.


def test_a_limit_of_what_is_not_logged_is_refused():
  guard = Guard(limits={"grad_norm/generatr": 1.0})
  assert refusal(guard.divergence_in, 1, history(d=[1.0], grad_norm__generator=[1.0])) == (
      "Guard.limits: the step logs no 'grad_norm/generatr'. Did you mean 'grad_norm/generator'? "
      "It logs: d, grad_norm/generator")


REFUSED = [
    ("Guard.action = 'stopp'", "must be one of 'stop', 'warn', .* Did you mean 'stop'?"),
    ("Guard.limits = ['d']", "must be Mapping"),
    ("Guard.limits = {'d': '50'}", "must be Mapping"),
    ("Guard.max_rollbacks = True", "must be int, not bool"),
    ("Guard.max_rollbacks = -1", "must be at least 0"),
    ("Guard.collapse = 1", r"must be a fraction in \[0, 1\)"),
    ("Guard.collapse = -0.1", "must be a fraction")]


def test_settings_that_cannot_work_are_refused(tmp_path):
  for binding, message in REFUSED:
    with pytest.raises(UsageError, match=f"{re.escape(binding)}: {message}"):
      train(tmp_path, binding, step=pytest.fail)
  Guard(limits={"d": np.inf, "g": 1}, max_rollbacks=0, collapse=0)  # The lowest and the highest.


def test_the_guard_warns_of_samples_that_hardly_vary_any_more():
  for above, is_fall in [(1.0, True), (0.05, True), (0.049, False), (np.nan, False)]:
    guard = Guard()
    warnings = [guard.at_log_point(
        step, {"sample_variance": sample, "data_variance": 1.0}, MAY_COLLAPSE)
                for step, sample in enumerate([0.01, above, np.nan, 0.01, 0.01])]
    assert list(map(len, warnings)) == [0, 0, 0, is_fall, 0]
  for sample, data, collapse in [(0.01, 1.0, 0.05), (0.05, 1.0, 0.05), (0.06, 1.0, 0.05),
                                 (0.0, 1.0, 0.0), (0.0, 0.0, 0.05), (np.nan, 1.0, 0.05)]:
    means = {"sample_variance": sample, "data_variance": data}
    guard = Guard(collapse=collapse)
    guard.at_log_point(40, {"sample_variance": 1.0, "data_variance": 1.0}, MAY_COLLAPSE)
    assert guard.at_log_point(50, means, MAY_COLLAPSE) == [
        "warning: step 50: mode collapse? sample_variance fell below Guard.collapse = 0.05 of "
        "data_variance: 0.01 of 1"] * (sample == 0.01)


def test_a_scalar_that_may_collapse_must_be_logged():
  with pytest.raises(UsageError, match=(
      r"^the step's may_collapse\['mode collapse'\]: the step logs no 'data_variance'. Did you "
      r"mean 'data_varianc'\? It logs: sample_variance, data_varianc$")):
    Guard().at_log_point(1, {"sample_variance": 1.0, "data_varianc": 1.0}, MAY_COLLAPSE)


def test_a_collapse_is_logged_once_until_the_samples_recover(tmp_path, capsys):
  def step():
    varies = tf.cast(replicator.step_number() // 3 % 2, tf.float32)  # Steps 4 to 6, 10 to 12.
    return {"sample_variance": 1e-3 + varies, "data_variance": 0.5}
  step.may_collapse = MAY_COLLAPSE
  train(tmp_path, "train.steps = 15", inputs=None, step=lambda: step)
  lines = [line for line in capsys.readouterr().out.splitlines() if "mode collapse" in line]
  assert [line.split(":")[1] for line in lines] == [" step 7", " step 13"]
