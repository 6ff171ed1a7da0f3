"""Steps, inputs and settings of every kind, and what is logged of them."""

import json
import re

import replicator
from replicator import Evaluation, UsageError, random
from tests.programs.logs import rows
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points, network
from tests.replicator.training.runs import MIRRORED_2, column, train

import gin
import numpy as np
import pytest
import tensorflow as tf


def test_a_step_without_inputs_draws_its_own_examples(tmp_path):
  def make_step():
    return lambda: {"mean": tf.reduce_mean(random.normal("x", [8 // replicator.num_replicas()]))}
  train(tmp_path / "1", "train.steps = 3", step=make_step)
  train(tmp_path / "2", "train.steps = 3", *MIRRORED_2, step=make_step)
  train(tmp_path / "3", "train.steps = 3", "train.seed = 1", step=make_step)
  one, two, seeded = (list(column(tmp_path / name, "mean").values()) for name in "123")
  assert len({*one, *seeded}) == 6
  np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-7)


def test_an_input_function_provides_the_batches(tmp_path):
  contexts = []

  def numbers(context):
    contexts.append(context)
    size = context.batch_size
    steps = tf.data.Dataset.range(100)
    return steps.map(lambda s: (s * size + tf.range(size, dtype=tf.int64), tf.fill([size, 2], s)))

  def mean(batch):
    position, step = batch
    assert position.shape == [4] and step.shape == [4, 2]
    return {"position": tf.reduce_mean(tf.cast(position, "float32")), "step": tf.reduce_max(step)}

  saving = "train.checkpoint_every = 2"
  for steps in (2, 4):  # The second time it resumes.
    train(tmp_path, f"train.steps = {steps}", "train.seed = 5", saving, *MIRRORED_2,
          step=lambda: lambda batch: {"mean": mean(batch)["position"]}, inputs=numbers)
  # Step s sees the positions 8 s ... 8 s + 7.
  assert column(tmp_path, "mean") == {1: 3.5, 2: 11.5, 3: 19.5, 4: 27.5}
  assert contexts[0] == replicator.InputContext(
      global_batch_size=8, input_pipeline_id=0, num_input_pipelines=1,
      num_replicas_in_sync=2, seed=5)


def test_a_data_set_that_ends_early_is_an_error(tmp_path):
  def short(context):
    return tf.data.Dataset.range(5).map(lambda s: tf.zeros([context.batch_size]))
  with pytest.raises(UsageError, match=r"ended before step 6: .*; add \.repeat\(\)"):
    train(tmp_path, "train.steps = 6", step=lambda: lambda x: {"x": tf.reduce_mean(x)},
          inputs=short)
  assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_run_that_failed_has_a_report_of_it_and_one_that_did_not_begin_has_none(tmp_path):
  def fails(a=1):
    raise ValueError("of the user")

  gin.external_configurable(fails, "of_nobody", module="tests")
  for name, step, kind, binding in (
      ("failed", fails, ValueError, "train.steps = 1"),
      ("refused", lambda: {"loss": tf.zeros([2])}, UsageError, "train.steps = 1"),
      ("unused", lambda: {"loss": 0.0}, UsageError, "of_nobody.a = 3")):
    with pytest.raises(kind):
      train(tmp_path / name, "train.steps = 1", binding, step=lambda step=step: step)
  ended = [json.loads((tmp_path / name / "run.json").read_text()).get("ended")
           for name in ("failed", "refused", "unused")]
  assert ended[0].startswith("failed: ") and ended[0].endswith("ValueError: of the user")
  assert "of the user" in (tmp_path / "failed" / "report.html").read_text()
  assert ended[1:] == [None, None]
  assert not any((tmp_path / name / "report.html").exists() for name in ("refused", "unused"))


@pytest.mark.parametrize("binding, message", [
    ("train.steps = 10.0", "train.steps = 10.0: must be int, not float"),
    ("train.steps_per_call = 3", "train.steps = 10: must be a multiple of train.steps_per_call"),
    ("train.steps_per_call = 5", "train.log_every = 1: must be a multiple of train.steps_per_call"),
    ("train.steps_per_call = 0", "train.steps_per_call = 0: must be a whole number of at least 1"),
    ("train.log_every = 0", "train.log_every = 0: must be a whole number of at least 1"),
    ("train.eval_every = -1", "train.eval_every = -1: must be a whole number of at least 0"),
    ("train.global_batch_size = 0", "train.global_batch_size = 0"),
    ("train.seed = -1", "train.seed = -1"),
    ("train.seed = 4294967296", "train.seed = 4294967296"),
    ("train.callbacks = [3]", r"train.callbacks = \[3\]: must be")])
def test_a_setting_that_cannot_work_is_an_error_of_one_line(tmp_path, binding, message):
  said = refusal(train, tmp_path / "run", "train.steps = 10", binding, step=pytest.fail)
  assert re.search(message, said) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("bindings, step, message", [
    (["microbatch.n = 3"], lambda: {"loss": replicator.microbatch(
        lambda x: tf.reduce_mean(x), tf.zeros([8]))}, "microbatch.n = 3: does not divide"),
    (["critick/microbatch.n = 2"], lambda: {"loss": in_scope("critic")},
     "critick/microbatch.n is never used.* Did you mean 'critic'?"),
    (["Guard.limits = {'los': 1.0}"], lambda: {"loss": 0.0},
     "Guard.limits: the step does not log 'los'. Did you mean 'loss'"),
    ([], lambda: {"loss": tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]))}, "Dimensions must be"),
    ([], lambda: {"loss": tf.zeros([2])}, "'loss' of shape"),
])
def test_what_cannot_train_is_refused_before_the_first_evaluation(
    bindings, step, message, tmp_path):
  with pytest.raises((UsageError, ValueError), match=message):
    train(tmp_path, "train.steps = 1", "train.eval_every = 1", *MIRRORED_2, *bindings,
          step=lambda: step, evaluate=pytest.fail)


def in_scope(scope: str) -> tf.Tensor:
  with gin.config_scope(scope):
    return replicator.microbatch(lambda x: tf.reduce_mean(x), tf.zeros([8]))


def test_an_evaluation_may_use_scopes_of_its_own(tmp_path):
  def evaluates(step):
    return Evaluation({"zero": float(in_scope("evaluation"))})
  train(tmp_path, "train.steps = 1", "train.eval_every = 1", "evaluation/microbatch.n = 2",
        step=lambda: lambda: {"loss": in_scope("critic")}, evaluate=evaluates)
  assert column(tmp_path, "eval/zero") == {0: 0.0, 1: 0.0}


def test_precision_is_that_of_the_whole_step(tmp_path):
  def make_step():
    net = network(1)
    return lambda batch: {"bits": tf.cast(8 * net(batch["x"]).dtype.size, "float32"),
                          "weights": tf.cast(8 * net.weights[0].value.dtype.size, "float32")}
  for name, bits in {"float64": (64, 64), "mixed_bfloat16": (16, 32)}.items():
    train(tmp_path / name, "train.steps = 1", f"train.precision = '{name}'", step=make_step,
          inputs=Points())
    row = rows(tmp_path / name)[0]
    assert (row["bits"], row["weights"]) == bits
