"""The doctor finds planted bugs and names their causes, and finds none in sound steps."""

import re
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError
from replicator.doctor import diagnosis, inspection, replica_recording
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, SKIPPED
from tests.programs import planted_bugs
from tests.replicator.doctor.checks import examine, largest, planted

pytestmark = pytest.mark.usefixtures("restored")

LOSS = "first: loss 'loss' at step 1"
GRADIENT = "first: gradient 'optimizer, update 1: network/000'"


@pytest.mark.parametrize(("bug", "first", "cause"), [
    ("local_batch_norm", LOSS, "local batch norm: Keras BatchNormalization takes the statistics of "
     "each replica by itself (sequential/batch_normalization)"),
    ("dropout", LOSS, "a Keras Dropout layer at tests/programs/planted_bugs.py:"),
    ("clipping", GRADIENT, "clipping before aggregation: tf.clip_by_global_norm at tests/"),
    ("sum", LOSS, "a loss summed instead of averaged: the loss 'loss' is exactly 1/2"),
    ("batch_dependent", LOSS, "a batch-dependent op"),
    ("unaveraged_variable", "first: variable 'latest' ", "a variable is assigned what one replica "
     "computed from its own examples; average a statistic first with replicator.all_mean; keep "),
    ("own_pool", "first: variable 'pool' ", "each replica puts only its own examples into "
     "'pool': 4 of 8 come in; keep a pool or a queue in a replicator.ExamplePool, or join the "
     "examples"),
    ("unseeded", LOSS, "the step is not deterministic"),
    *(pytest.param(*bug, marks=pytest.mark.slow) for bug in [
        ("keras_random", LOSS, "a keras.random draw at tests/programs/planted_bugs.py:"),
        ("clipping_by_hand", GRADIENT, "gradients changed before aggregation by an operation that "
         "is not linear (Maximum at tests/programs/planted_bugs.py:"),
        ("sum_unseen", GRADIENT, "a loss summed instead of averaged: all gradients of this update "
         "are exactly 1/2"),
        ("added_gradients", GRADIENT, "a sum over replicas: all gradients of this update are "
         "exactly 2 times as large"),
        ("joined", LOSS, "a replicator.Dropout layer draws at tests/programs/planted_bugs.py:"),
        ("weights", "first: variable 'network/003' (sequential/dense_1/bias) before the first step",
         "initial weights differ")]),
])
def test_a_planted_bug_is_found_on_two_replicas_and_named(bug, first, cause):
  row = next(examine(planted(bug), steps=1).results())
  assert row.verdict == DIFFERS and largest(row) > 1e-4
  found_first, found_cause = row.notes
  assert found_first.startswith(first)
  assert found_cause.startswith(f"likely cause: {cause}")


@pytest.mark.parametrize(("bug", "cause"), [
    ("local_batch_norm", "local batch norm: Keras BatchNormalization takes the statistics of each "
                         "micro-batch"),
    ("clipping", "clipping before aggregation: tf.clip_by_global_norm"),
])
def test_a_planted_bug_is_found_in_micro_batches_and_named(bug, cause):
  row = examine(planted(bug), steps=1)._microbatch_result()
  assert row.verdict == DIFFERS
  assert row.notes[1].startswith(f"likely cause: {cause}")


@pytest.mark.slow
def test_the_cause_of_joined_batches_says_where_and_what_to_do():
  cause = next(examine(planted("joined"), steps=1).results()).notes[1]
  line = r"at tests/programs/planted_bugs\.py:\d+"
  assert re.search(rf"draws {line} on batches that are joined {line}: on each replica their rows "
                   "are in another order; draw, or call the network, once for each batch$", cause)
  assert "Dropout layer at" not in cause  # As a Keras layer is named.


def test_a_variable_of_one_micro_batch_is_not_to_be_averaged_over_replicas():
  case = diagnosis.Case(
      replica_recording.ReplicaRecording({}, True, 8, inspection.Evidence(lambda: None)), {},
      diagnosis.Deviation((1, "variable", "latest"), 1.0, (1.0, 2.0)), 2, True, 1e-9)
  assert "return a statistic from microbatch's fn, which averages it" in case.cause()


def test_gradients_that_are_not_compared_are_named():
  found = examine(planted("branch"), "Regression.accumulates = False", steps=1)
  assert len(found.notes) == 1
  assert re.match(r"not compared: gradients that optimizer at tests/programs/planted_bugs\.py:\d+ "
                  "takes inside a loop or a branch of the step; the variables .* are$",
                  found.notes[0])
  assert examine(steps=1).notes == []


def trained_by(make_optimizer) -> Callable[[str], None]:
  """Trains with another optimizer, and a bias before a batch norm."""
  def make_step():
    step = planted_bugs.Regression(norm="global")
    step.optimizer = replicator.wrap_optimizer(make_optimizer(), step.variables_learned)
    return step
  return lambda workdir: replicator.train(make_step, planted_bugs.Points(), workdir=workdir)


@pytest.mark.parametrize("name", ["Lion", pytest.param("Adafactor", marks=pytest.mark.slow)])
def test_no_optimizer_makes_an_update_of_rounding(name):
  make = lambda: getattr(keras.optimizers, name)(0.01)
  found = examine(main=trained_by(make))
  assert next(found.results()).verdict == AGREES
  # The true gradient of the bias before the batch norm is zero, and the bias stays there.
  values = found.reference.quantities
  assert not any(values[2, "variable", "network/001"])
  assert all(np.any(values[2, "variable", path]) for path in ("network/000", "network/005"))


def test_steps_of_several_in_a_call_are_compared_one_by_one():
  found = examine("train.steps_per_call = 10", "train.log_every = 10")
  assert {step for step, *_ in found.reference.quantities} == {0, 1, 2}
  assert next(found.results()).verdict == AGREES


def test_before_call_gets_the_numbers_of_a_run():
  numbers = []

  def main(workdir):
    replicator.train(lambda: lambda: {"loss": tf.zeros([])}, workdir=workdir,
                     before_call=lambda step, number: numbers.append(number))

  examine(main=main, steps=3)
  assert numbers == [0, 1, 2]


def test_clipping_that_never_changes_a_gradient_is_no_bug():
  assert next(examine(planted("clipping_of_nothing"), steps=1).results()).verdict == AGREES


@pytest.mark.slow
def test_batch_statistics_are_compared_in_the_same_micro_batches():
  rows = list(examine("Regression.norm = 'global'").results())
  assert [row.verdict for row in rows] == [AGREES] * 3
  assert "compared on 2 replicas with 2 micro-batches on 1" in rows[2].notes[0]


def test_what_cannot_be_divided_is_skipped_and_says_why():
  rows = list(examine("train.global_batch_size = 6", "Regression.accumulates = False").results())
  assert [row.verdict for row in rows] == [AGREES, SKIPPED, SKIPPED]
  assert "6: does not divide by the 4 replicas" in rows[1].detail
  assert rows[2].detail == "the step does not call replicator.microbatch"


def test_a_variant_that_fails_says_where_and_why():
  row = next(examine(planted("global_generator"), steps=1).results())
  assert row.verdict == FAILED and "planted_bugs.py" in row.detail
  assert "likely cause: a keras.random draw at tests/programs/planted_bugs.py:" in row.notes[0]


@pytest.mark.slow
def test_in_float32_a_sound_step_agrees_loosely_and_a_bug_does_not():
  found = examine(precision="float32")
  row = next(found.results())
  assert row.verdict == AGREES and 1e-9 < largest(row) < 1e-5
  assert next(examine(planted("sum"), precision="float32").results()).verdict == DIFFERS


class Recomputing(tf.Module):
  """A step that recomputes a network which draws, iterates and moves statistics."""

  def __init__(self, recompute_grad):
    super().__init__()
    self.network = keras.Sequential([
        keras.Input([planted_bugs.WIDTH]), replicator.SpectralNorm(keras.layers.Dense(4)),
        replicator.GlobalBatchNorm(), replicator.Dropout(0.5), keras.layers.Dense(1)])
    self.forward = recompute_grad(lambda x: self.network(x, training=True))
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.SGD(0.1), self.network.trainable_variables)

  def __call__(self, batch):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(self.forward(batch["x"]) - batch["y"]))
    self.optimizer.apply(tape.gradient(loss, self.optimizer.variables_updated))
    return {"loss": loss}


def trains_recomputing(recompute_grad):
  return lambda workdir: replicator.train(
      lambda: Recomputing(recompute_grad), planted_bugs.Points(), workdir=workdir)


def test_a_recomputation_that_would_be_wrong_everywhere_alike_is_refused():
  with pytest.raises(UsageError, match=r"once more while tf.recompute_grad .* recomputes it"):
    examine(main=trains_recomputing(tf.recompute_grad))


@pytest.mark.slow
def test_a_recomputed_network_agrees():
  rows = list(examine(main=trains_recomputing(replicator.recompute_grad)).results())
  assert [row.verdict for row in rows] == [AGREES, AGREES, SKIPPED]
