"""Settings of `train`, and those that cannot work."""

import re

import gin
import pytest
import tensorflow as tf

import replicator
from replicator import Evaluation, UsageError
from tests.programs.logs import rows
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points, network
from tests.replicator.training.runs import MIRRORED_2, column, train

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


IMPOSSIBLE = [
    ("train.steps = 10.0", "train.steps = 10.0: must be int, not float"),
    ("train.steps_per_call = 3", "train.steps = 10: must be a multiple of train.steps_per_call"),
    ("train.steps_per_call = 5", "train.log_every = 1: must be a multiple of train.steps_per_call"),
    ("train.steps_per_call = 0", "train.steps_per_call = 0: must be a whole number of at least 1"),
    ("train.log_every = 0", "train.log_every = 0: must be a whole number of at least 1"),
    ("train.eval_every = -1", "train.eval_every = -1: must be a whole number of at least 0"),
    ("train.checkpoint_every = None", "train.checkpoint_every = None: must be int"),
    ("train.global_batch_size = 0", "train.global_batch_size = 0"),
    ("train.global_batch_size = '8'", "train.global_batch_size = '8': must be int, not str"),
    ("train.seed = -1", "train.seed = -1"),
    ("train.seed = 4294967296", "train.seed = 4294967296")]


def test_a_setting_that_cannot_work_is_an_error_of_one_line(tmp_path):
  for binding, message in IMPOSSIBLE:
    said = refusal(train, tmp_path / "run", "train.steps = 10", binding, step=pytest.fail)
    assert re.search(message, said) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("bindings, step, message", [
    (["microbatch.n = 3"], lambda: {"loss": replicator.microbatch(
        lambda x: tf.reduce_mean(x), tf.zeros([8]))}, "microbatch.n = 3: does not divide"),
    (["critick/microbatch.n = 2"], lambda: {"loss": in_scope("critic")},
     "critick/microbatch.n is never used.* Did you mean 'critic'?"),
    (["Guard.limits = {'los': 1.0}"], lambda: {"loss": 0.0}, "the step logs no 'los'"),
    (["Checkpoints.keep_best = 'los'"], lambda: {"loss": 0.0}, "keep_best = 'los': nothing of"),
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
