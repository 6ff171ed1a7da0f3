"""The doctor finds planted bugs and names their causes, and finds none in sound steps."""

import inspect
import itertools
import os
import pathlib
import re
import subprocess
import sys
import types
from collections.abc import Callable

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError, random
from replicator.doctor import __main__ as doctor
from replicator.doctor import diagnosis, inspection, replica_check, replica_recording
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, SKIPPED, CheckResult
from replicator.optimizers.optimizer import Optimizer
from replicator.step import context
from tests.programs import planted_bugs

ROOT = pathlib.Path(__file__).parents[3]
SMALL = ["train.global_batch_size = 8"]


@pytest.fixture(autouse=True)
def restored(set_precision, seed, monkeypatch):
  """What the doctor configures in this process is undone after every test."""
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
  yield
  gin.clear_config()


def examine(*params: str, main=planted_bugs.main, **settings) -> replica_check.ReplicaCheck:
  found = replica_check.ReplicaCheck(main, [], [*SMALL, *params], **{"steps": 2, **settings})
  found.prepare()
  return found


def planted(bug: str) -> str:
  return f"Regression.bug = '{bug}'"


def largest(row: CheckResult) -> float:
  return float(row.detail.split()[0])


# ---- Steps and their bugs -----------------------------------------------------------------------


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
     "'pool': 4 of 8 come in; keep a pool or a queue in a replicator.Pool, or join the examples"),
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


# ---- What is run --------------------------------------------------------------------------------


def test_the_experiment_is_neither_evaluated_nor_written_nor_finished():
  folders = []

  def main(workdir):
    folders.append(workdir)
    replicator.train(planted_bugs.Regression, planted_bugs.Points(),
                     evaluate=lambda step: pytest.fail("evaluated"), workdir=workdir)
    pytest.fail("continued after the training")

  assert next(examine(main=main).results()).verdict == AGREES
  assert len(folders) == 2 and not any(os.path.exists(folder) for folder in folders)


def test_every_gradient_of_every_step_is_compared():
  recorded = examine(main=planted_bugs.main).reference.quantities
  learned = {path for step, kind, path in recorded if kind == "variable" and step == 0
             and path.startswith("network/")}
  assert len(learned) == 4
  for step in (1, 2):
    assert {name for s, kind, name in recorded if (s, kind) == (step, "gradient")} == {
        f"optimizer, update 1: {path}" for path in learned}


def test_gradients_that_the_optimizer_does_not_report_are_noticed(monkeypatch):
  monkeypatch.setattr(Optimizer, "_reported", lambda self, report, flats, gradients, _: gradients)
  with pytest.raises(RuntimeError, match="saw no gradients of optimizer, which made updates"):
    examine(steps=1)


def test_an_experiment_that_cannot_be_examined_says_why():
  with pytest.raises(UsageError, match=r"did not call replicator\.train"):
    examine(main=lambda workdir: None)
  fixed = lambda workdir: replicator.train(
      planted_bugs.Regression, planted_bugs.Points(), workdir=workdir, precision="float32")
  with pytest.raises(UsageError, match=r"passes precision = 'float32' .* leave train.precision"):
    examine(main=fixed)


# ---- What agrees --------------------------------------------------------------------------------


def quantities(kind: str, step: int = 1, **values) -> dict:
  return {(step, kind, name.replace("__", ": ")): np.asarray(value)
          for name, value in values.items()}


def test_differences_are_relative_to_the_quantity():
  largest, first = diagnosis.compare(
      quantities("loss", a=4.0, b=2.0), quantities("loss", a=4.0, b=2.0 + 1e-8), 1e-9)
  assert largest == first
  assert first.key == (1, "loss", "b") and first.relative == pytest.approx(5e-9, rel=1e-6)
  assert diagnosis.compare(
      quantities("loss", a=4.0), quantities("loss", a=4.0 + 1e-9), 1e-9)[1] is None


def test_the_first_difference_is_not_the_largest():
  one = quantities("loss", 1, a=1.0) | quantities("loss", 2, a=1.0)
  other = quantities("loss", 1, a=1.001) | quantities("loss", 2, a=9.0)
  largest, first = diagnosis.compare(one, other, 1e-9)
  assert (first.key[0], largest.key[0]) == (1, 2)


def test_every_variable_is_judged_by_itself():
  beside = quantities("variable", replay=np.full(3_000_000, 200.0), kernel=[3.0, 4.0])
  one = beside | quantities("variable", scale=1.0)
  found = diagnosis.compare(one, beside | quantities("variable", scale=1.0001), 1e-9)[1]
  assert found.key[2] == "scale" and found.relative == pytest.approx(1e-4)
  assert diagnosis.compare(one, beside | quantities("variable", scale=1 + 1e-10), 1e-9)[1] is None


def test_a_variable_that_passes_through_zero_is_judged_by_its_changes():
  at = lambda step, value: quantities("variable", step, bias=[value, -value])
  before = at(0, 0.0) | at(1, 0.5)
  assert diagnosis.compare(before | at(2, 1e-17), before | at(2, -3e-17), 1e-9)[1] is None
  assert diagnosis.compare(before | at(2, 1e-17), before | at(2, 1e-8), 1e-9)[1] is not None
  rests = before | at(2, 1e-17)  # Its largest change is one of an earlier step.
  assert diagnosis.compare(rests | at(3, 1e-17), rests | at(3, -3e-17), 1e-9)[1] is None
  still = at(0, 1e-17) | at(1, 1e-17)
  assert diagnosis.compare(still, at(0, 1e-17) | at(1, -3e-17), 1e-9)[1] is not None


def test_rounding_noise_beside_gradients_of_the_same_update_agrees():
  noise = quantities("gradient", g__kernel=[1.0, 2.0], g__bias=[1e-17])
  other = quantities("gradient", g__kernel=[1.0, 2.0], g__bias=[-3e-17])
  assert diagnosis.compare(noise, other, 1e-9)[1] is None
  alone = quantities("gradient", h__bias=[1e-17]), quantities("gradient", h__bias=[-3e-17])
  assert diagnosis.compare(*alone, 1e-9)[1] is not None


def test_whole_numbers_do_not_hide_the_differences_of_their_neighbors():
  one = quantities("variable", seeds=np.int64(10 ** 9), w=[1.0])
  assert diagnosis.compare(one, {**one, **quantities("variable", w=[1.1])}, 1e-9)[1]
  other = {**one, **quantities("variable", seeds=np.int64(10 ** 9 + 5))}
  assert diagnosis.compare(one, other, 1e-9)[1].key[2] == "seeds"


@pytest.mark.parametrize("other", [
    {}, quantities("loss", a=[1.0, np.inf]), quantities("loss", a=[np.nan, 1.0]),
    quantities("loss", a=[1.0]), quantities("loss", a=[1.0, 1.0], b=1.0)])
def test_what_is_missing_or_not_finite_or_of_another_shape_differs(other):
  assert diagnosis.compare(quantities("loss", a=[1.0, 1.0]), other, 1e-9)[1].relative == np.inf


def test_equal_values_that_are_not_finite_agree():
  same = quantities("loss", a=[np.nan, np.inf])
  assert diagnosis.compare(same, dict(same), 1e-9)[1] is None


GRADIENTS = quantities("gradient", u__w=[1.0, 2.0], u__b=3.0, other__w=5.0)


@pytest.mark.parametrize(("one", "other", "cause"), [
    (quantities("loss", a=4.0), quantities("loss", a=1.0),
     "a loss summed instead of averaged: the loss 'a' is exactly 1/4 of the reference's"),
    (quantities("loss", a=4.0), quantities("loss", a=16.0),
     "a sum over replicas: the loss 'a' is exactly 4 times as large"),
    (GRADIENTS, GRADIENTS | quantities("gradient", u__w=[0.25, 0.5], u__b=0.75),
     "a loss summed instead of averaged: all gradients of this update are exactly 1/4"),
    (GRADIENTS, GRADIENTS | quantities("gradient", u__w=[4.0, 8.0], u__b=12.0),
     "a sum over replicas: all gradients of this update are exactly 4 times as large"),
    (GRADIENTS, GRADIENTS | quantities("gradient", u__w=[4.0, 8.0]), "a batch-dependent op"),
    (quantities("variable", 0, w=4.0), quantities("variable", 0, w=1.0), "initial weights differ")])
def test_the_same_ratio_everywhere_is_a_sum(one, other, cause):
  reference = replica_recording.ReplicaRecording(one, True, 8, inspection.Evidence(lambda: None))
  first = diagnosis.compare(one, other, 1e-9)[1]
  assert diagnosis.Case(reference, other, first, 4, False, 1e-9).cause().startswith(cause)


@pytest.mark.parametrize(("tape", "kind", "cause"), [
    (1.0, "clips", "clipping before aggregation: this at my_step.py:3; set wrap_optimizer's clip_"),
    (1.0, "changes", "gradients changed before aggregation by an operation that is not linear "
     "(this at my_step.py:3), as in clipping; set wrap_optimizer's clip_norm, which clips the"),
    (2.5, "clips", "a batch-dependent op")])
def test_clipping_is_blamed_only_where_the_gradients_of_the_tape_agree(tape, kind, cause):
  one = quantities(replica_recording.RAW, u__0=1.0) | quantities("gradient", u__w=0.3)
  other = quantities(replica_recording.RAW, u__0=tape) | quantities("gradient", u__w=0.4)
  seen = inspection.Evidence(lambda: None)
  getattr(seen, kind).append("this at my_step.py:3")
  first = diagnosis.compare(one, other, 1e-9)[1]
  reference = replica_recording.ReplicaRecording(one, True, 8, seen)
  case = diagnosis.Case(reference, other, first, 2, False, 1e-9)
  assert case.cause().startswith(cause)


def test_a_batch_norm_that_never_ran_in_training_is_not_blamed():
  step = tf.Module()
  step.frozen, step.local = (keras.layers.BatchNormalization(name=name) for name in ("a", "b"))
  step.together = keras.layers.BatchNormalization(synchronized=True)
  for layer in (step.frozen, step.local, step.together):
    layer.build([None, 1])
  seen = inspection.Evidence(step)
  mean = next(i for i, v in enumerate(step.local.variables) if v is step.local.moving_mean)
  one = quantities("loss", a=1.0)
  for number, moved in ((0, 0.0), (1, 0.5)):
    one |= {(number, "variable", f"{name}/{mean:03d}"): np.array([moved * (name != "frozen")])
            for name in ("frozen", "local", "together")}
  first = diagnosis.Deviation((1, "loss", "a"), 1.0, (1.0, 1.5))
  reference = replica_recording.ReplicaRecording(one, True, 8, seen)
  cause = diagnosis.Case(reference, dict(one), first, 2, False, 1e-9).cause()
  assert cause.startswith("local batch norm: ") and "each replica by itself (b); use" in cause


def test_a_recording_comes_back_from_its_file_in_order(tmp_path):
  found = quantities("loss", b=1.5) | quantities("gradient", optimizer__network_0=[1.0, 2.0])
  found |= quantities("variable", a=np.int64(3))
  path = str(tmp_path / "recording.npz")
  replica_recording.ReplicaRecording(found, True, 8, inspection.Evidence(lambda: None)).write(path)
  loaded = replica_recording.load(path)
  assert list(loaded) == list(found)
  assert all(np.array_equal(loaded[key], found[key]) for key in found)


# ---- What is seen in the graph ------------------------------------------------------------------


SEED, GENERATOR = [1, 2], tf.random.Generator.from_seed(0)


@pytest.mark.parametrize("draw, draws, with_state", [
    (lambda: tf.random.normal([2]), 1, 1), (lambda: tf.random.uniform([2]), 1, 1),
    (lambda: tf.random.truncated_normal([2]), 1, 1), (lambda: tf.random.gamma([2], 1.0), 1, 1),
    (lambda: tf.random.categorical([[0.0, 1.0]], 1), 1, 1), (lambda: GENERATOR.normal([2]), 1, 0),
    (lambda: tf.random.shuffle([1.0, 2.0]), 1, 1),
    (lambda: tf.random.stateless_normal([2], SEED), 1, 0),
    (lambda: tf.random.stateless_truncated_normal([2], SEED), 1, 0),
    (lambda: tf.random.stateless_categorical([[0.0, 1.0]], 1, SEED), 1, 0),
    (lambda: tf.random.stateless_parameterized_truncated_normal([2], SEED), 1, 0),
    (lambda: tf.random.split(SEED), 0, 0),
    (lambda: tf.raw_ops.StatelessRandomGetAlg(), 0, 0)])
def test_every_kind_of_draw_is_seen_and_no_key(draw, draws, with_state):
  seen = inspection.Evidence(lambda: None)
  seen.look_at_graph(tf.function(draw, autograph=False).get_concrete_function().graph)
  assert (len(seen.draws), len(seen.stateful_draws)) == (draws, with_state)
  assert all(re.match(r"a tf\.random draw at tests/replicator/doctor/test_replica_check\.py:\d+$",
                      found) for found in seen.draws)


def evidence_of(change) -> tuple[inspection.Evidence, list[tf.Tensor]]:
  """What is seen between the tape and the optimizer, and the gradients of the tape."""
  seen, x, found = inspection.Evidence(lambda: None), tf.constant([1.0, 2.0]), []

  def step():
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = tf.reduce_sum(x ** 3)
    found.extend(seen.gradients_of_tape([change(tape.gradient(loss, x))]))
  tf.function(step, autograph=False).get_concrete_function()
  return seen, found


@pytest.mark.parametrize("change, operations", [
    (tf.abs, {"Abs"}), (tf.nn.l2_loss, {"L2Loss"}), (lambda g: tf.maximum(g, 1.0), {"Maximum"}),
    (lambda g: tf.minimum(g, 1.0), {"Minimum"}), (tf.math.rsqrt, {"Rsqrt"}), (tf.sign, {"Sign"}),
    (lambda g: tf.where(g > 1.0, g, 1.0), {"SelectV2"}), (tf.sqrt, {"Sqrt"}),
    (lambda g: tf.compat.v1.where(g > 1.0, g, g + 1.0), {"Select"}), (tf.square, {"Square"}),
    (tf.tanh, {"Tanh"}), (lambda g: tf.reshape(2.0 * g + 1.0, [2, 1]), set())])
def test_a_change_of_a_gradient_that_is_not_linear_is_seen(change, operations):
  seen, gradients = evidence_of(change)
  assert gradients and not seen.clips
  assert {text.partition(" at tests/")[0] for text in seen.changes} == operations


@pytest.mark.parametrize("clip", [
    lambda g: tf.clip_by_norm(g, 1.0), lambda g: tf.clip_by_value(g, 0.0, 1.0),
    lambda g: tf.clip_by_global_norm([g], 1.0)[0][0], lambda g: tf.compat.v1.clip_by_average_norm(
        g, 1.0)], ids=["norm", "value", "global_norm", "average_norm"])
def test_every_clipping_is_named(clip, request):
  seen, _ = evidence_of(clip)
  name, _, place = seen.clips[0].partition(" at ")
  assert name == f"tf.clip_by_{request.node.callspec.id}"
  assert place.startswith("tests/replicator/doctor/test_replica_check.py:")


@pytest.mark.parametrize("changes, is_seen", [(0, False), (3, True), (4, False)])
def test_a_gradient_that_took_too_many_operations_is_not_one_of_the_tape(changes, is_seen,
                                                                         monkeypatch):
  monkeypatch.setattr(inspection, "_MOST_CHANGES", 3)
  def change(gradient):
    for _ in range(changes):
      gradient = tf.negative(gradient)
    return gradient
  assert bool(evidence_of(change)[1]) == is_seen


def test_draws_are_for_joined_batches_if_they_have_as_many_rows():
  seen, drops = inspection.Evidence(lambda: None), replicator.Dropout(0.5)

  def step(x):
    context.current().on_draw = seen.look_at_draw
    wide = tf.concat([x, x], 1) + random.normal("z", [4, 6])
    long = tf.concat([wide, wide], 0)
    dropped = drops(long, training=True) + drops(tf.concat([long, long], 0), training=True)[:8]
    seen.look_at_graph(tf.compat.v1.get_default_graph())
    return dropped + random.normal("w", [12, 6])[:8]

  replicator.Replicator("default").run(step, np.ones([4, 3], np.float32))
  lines = inspect.getsourcelines(step)
  line = lambda number: f"tests/replicator/doctor/test_replica_check.py:{lines[1] + number}"
  assert seen.draws_for_joined_batches() == [
      (f"a replicator.Dropout layer draws at {line(4)}", place) for place in (line(3), line(4))]
  assert seen.draws == []
  reference = replica_recording.ReplicaRecording(quantities("loss", a=1.0), True, 8, seen)
  first = diagnosis.Deviation((1, "loss", "a"), 0.5, (1.0, 1.5))
  cause = diagnosis.Case(reference, {}, first, 2, False, 1e-9).cause()
  assert cause.startswith(
      f"a replicator.Dropout layer draws at {line(4)} on batches that are joined at {line(3)}: on "
      "each replica their rows are in another order; draw, or call the network, once for each")


# ---- The variants -------------------------------------------------------------------------------


NORM = replicator.GlobalBatchNorm()


def rows(recordings: dict, step=lambda: None, devices: int = 1, words=None, **seen):
  """The table of a step whose loss `a` is known, by replicas and micro-batches, or its values."""
  check = replica_check.ReplicaCheck(lambda workdir: None, [], [])
  evidence = inspection.Evidence(step)
  vars(evidence).update(seen)

  def record(replicas: int, microbatches: int = 1) -> replica_recording.ReplicaRecording:
    found = recordings.get((replicas, microbatches), 1.0)
    if isinstance(found, Exception):
      raise found
    found = next(found) if hasattr(found, "__next__") else found
    values = found if isinstance(found, dict) else quantities("loss", a=found)
    return replica_recording.ReplicaRecording(values, True, 8, evidence)
  check._record, check._devices, check.reference = record, devices, record(1)
  return list(check.results(words))


def test_the_statistics_of_micro_batches_are_not_compared_with_those_of_the_full_batch():
  step, in_parts = lambda: NORM, {(1, 2): 2.0, (2, 2): 2.0}
  *_, row = rows(in_parts, step, microbatched=True)
  assert row.verdict == AGREES and row.notes[0].startswith("compared on 2 replicas with 2 micro")
  *_, row = rows({**in_parts, (2, 2): 2.5}, step, microbatched=True)
  assert row.verdict == DIFFERS and "each replica has its own" in row.notes[2]
  *_, row = rows(in_parts, microbatched=True)
  assert row.verdict == DIFFERS and "a sum over replicas" in row.notes[1]


def test_each_row_has_its_own_replicas():
  assert [(row.check, row.verdict) for row in rows({(4, 1): 1.5})] == [
      ("2 replicas", AGREES), ("4 replicas", DIFFERS), ("2 micro-batches", SKIPPED)]
  assert "exactly 1/4" in rows({(4, 1): 0.25})[1].notes[1]


def test_weights_that_differ_are_no_proof_that_the_step_draws():
  weights = lambda: (quantities("variable", 0, w=value) for value in itertools.count())
  cause = rows({(1, 1): weights(), (2, 1): quantities("variable", 0, w=9.0)})[0].notes[1]
  assert cause.startswith("likely cause: initial weights differ")
  losses = map(float, itertools.count())
  assert "not deterministic" in rows({(1, 1): losses, (2, 1): 9.0})[0].notes[1]


def test_a_variant_that_is_refused_says_so_in_one_line():
  two, four, _ = rows({(2, 1): UsageError("step.py:3: no such\nIn call to train"),
                       (4, 1): UsageError("train.global_batch_size = 6: does not divide by the 4")})
  assert (two.verdict, two.detail, two.notes) == (FAILED, "step.py:3: no such", ())
  assert (four.verdict, four.detail[-8:]) == (SKIPPED, "by the 4")
  row = rows({(1, 2): UsageError("in parts")}, lambda: NORM, microbatched=True)[2]
  assert (row.verdict, row.detail) == (FAILED, "in parts")


def test_two_processes_are_compared_by_what_their_chief_recorded(monkeypatch):
  def run_doctor(words, workers):
    *given, record = words
    assert (given, workers) == (["--experiment=x"], 2)
    value = quantities("loss", a=2.0)
    replica_recording.ReplicaRecording(value, True, 8, inspection.Evidence(lambda: None)).write(
        record.removeprefix("--record="))
  monkeypatch.setattr(replica_check, "run_doctor", run_doctor)
  row = rows({}, words=["--experiment=x"])[3]
  assert (row.check, row.verdict) == ("2 processes", DIFFERS)
  assert "a sum over replicas: the loss 'a' is exactly 2 times as large" in row.notes[1]


@pytest.mark.parametrize("is_chief", [True, False])
def test_only_the_chief_of_a_cluster_writes_what_it_recorded(is_chief, tmp_path, monkeypatch):
  recording = replica_recording.ReplicaRecording(
      quantities("loss", a=1.0), is_chief, 8, inspection.Evidence(lambda: None))
  monkeypatch.setattr(replica_check.ReplicaCheck, "_record_with", lambda check, bindings: recording)
  replica_check.ReplicaCheck(lambda workdir: None, [], []).record_process(str(tmp_path / "r.npz"))
  assert (tmp_path / "r.npz").exists() == is_chief


def test_a_replica_of_several_devices_has_no_second_process():
  row = rows({}, devices=2, words=["--experiment=x"])[-1]
  assert (row.check, row.verdict) == ("2 processes", SKIPPED)
  assert row.detail == "Replicator.devices_per_replica works in one process"
  assert len(rows({})) == len(rows({}, devices=2)) == 3


# ---- The command line ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_finds_a_sound_step_outside_the_repository_the_same_in_every_variant(tmp_path):
  source = pathlib.Path(planted_bugs.__file__).read_text()
  (tmp_path / "my_step.py").write_text(source)
  done = subprocess.run(
      [sys.executable, "-m", "replicator.doctor", f"--experiment={tmp_path / 'my_step.py'}",
       "--steps=2", f"--gin_param={SMALL[0]}"], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  title, _, *rows, conclusion = done.stdout.splitlines()
  assert "my_step.py: 2 steps of 8 examples in float64" in title
  assert [(row[2:20].strip(), row.split()[2]) for row in rows] == [
      ("2 replicas", AGREES), ("4 replicas", AGREES), ("2 micro-batches", AGREES),
      ("2 processes", AGREES)]
  assert all(float(row.split()[-6]) < 1e-13 for row in rows)
  assert conclusion == "This step trains the same however it is divided."
  assert done.stderr == ""


class Check:
  """A check whose rows are known."""

  tolerance, notes, reference = 1e-9, ("not compared: a",), types.SimpleNamespace(batch_size=8)

  def __init__(self, rows):
    self.rows, self.arguments, self.recorded = rows, (), []

  def __call__(self, *arguments):
    self.arguments = arguments
    return self

  def record_process(self, path):
    self.recorded.append(path)

  def prepare(self):
    pass

  def results(self, words):
    return (CheckResult("row", verdict, "") for verdict in self.rows)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("verdicts, status, conclusion", [
    ([AGREES, SKIPPED], 0, "This step trains the same however it is divided."),
    ([AGREES, DIFFERS], 1, "This step does not train the same however it is divided."),
    ([AGREES, FAILED], 1, "This step does not train the same however it is divided."),
    ([SKIPPED], 1, "Nothing could be compared.")])
def test_the_status_says_whether_a_step_trains_the_same(verdicts, status, conclusion, monkeypatch,
                                                       capsys):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  check = Check(verdicts)
  monkeypatch.setattr(replica_check, "ReplicaCheck", check)
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
  assert doctor.main(["--experiment=x"]) == status
  title, _, note, *_, last = capsys.readouterr().out.splitlines()
  assert title == "x: 5 steps of 8 examples in float64, against 1 replica"
  assert (note, last) == ("not compared: a", conclusion)
  assert check.arguments == (None, [], [], 5, "float64")
  assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"  # Every machine has CPUs to divide.


@pytest.mark.usefixtures("restored")
def test_a_process_of_a_cluster_records_and_prints_nothing(monkeypatch, capsys):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  check = Check([])
  monkeypatch.setattr(replica_check, "ReplicaCheck", check)
  assert doctor.main(["--experiment=x", "--gin_file=f.gin", "--gin_param=a.b = 1", "--steps=3",
                      "--precision=float32", "--record=r.npz"]) == 0
  assert check.arguments == (None, ["f.gin"], ["a.b = 1"], 3, "float32")
  assert check.recorded == ["r.npz"] and capsys.readouterr().out == ""


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("fails, has_hint", [
    (lambda: tf.constant(1.0) + tf.constant(1.0, tf.float64), True),
    (lambda: tf.constant(1.0) + tf.constant(1), False)])
def test_a_step_that_has_only_run_in_float32_gets_a_hint(fails, has_hint, monkeypatch, capsys):
  monkeypatch.setattr(doctor, "load", lambda experiment: lambda workdir: fails())
  assert doctor.main(["--experiment=x"]) == 1
  error, = capsys.readouterr().err.splitlines()
  assert error.endswith("(the proof is in float64: cast to keras.config.floatx() instead of "
                        "tf.float32, or compare loosely with --precision=float32)") == has_hint


@pytest.fixture
def examine_planted(monkeypatch, capsys):
  """The command on the planted bugs, in this process and so without two others."""
  def run(*words: str) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "load", lambda experiment: planted_bugs.main)
    monkeypatch.setattr(replica_check.ReplicaCheck, "results", first_row)
    status = doctor.main(["--experiment=x", "--steps=1", f"--gin_param={SMALL[0]}", *words])
    return status, "".join(capsys.readouterr())

  every_row = replica_check.ReplicaCheck.results

  def first_row(self, words):
    yield next(every_row(self))
  return run


def test_the_status_is_1_where_something_differs(examine_planted):
  status, printed = examine_planted(f"--gin_param={planted('sum')}")
  assert status == 1
  assert "likely cause: a loss summed instead of averaged" in printed
  assert printed.endswith("This step does not train the same however it is divided.\n")


def test_the_status_is_1_where_nothing_could_be_compared(examine_planted):
  status, printed = examine_planted("--gin_param=train.global_batch_size = 7")
  assert status == 1 and "7: does not divide by the 2 replicas" in printed
  assert printed.endswith("Nothing could be compared.\n")


@pytest.mark.parametrize(("words", "message"), [
    (["--experiment=experiments.no_such"], "no such module"),
    (["--experiment=no/such/file.py"], "no such file"),
    (["--experiment=experiments.sngan", "--steps=0"], "--steps=0: must be at least 1"),
    (["--experiment=experiments.sngan", "--gin_fil=x"], "Did you mean '--gin_file'?"),
    (["--experiment=experiments.sngan", "--precision=float16"], "--precision"),
    (["--gin_file=x"], "--experiment"),
])
def test_a_bad_command_line_is_status_2_and_one_line(words, message, capsys):
  assert doctor.main(words) == 2
  output = capsys.readouterr()
  assert output.out == "" and output.err.count("\n") == 1 and message in output.err


def test_the_home_directory_may_be_written_as_a_tilde(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert doctor.main(["--experiment=~/my_step.py"]) == 2
  assert f"--experiment={tmp_path}/my_step.py: no such file" in capsys.readouterr().err


def test_a_bad_binding_is_status_2(examine_planted):
  status, printed = examine_planted("--gin_param=Regression.bugs = 1")
  assert status == 2 and "Did you mean 'bug'?" in printed


def test_a_program_hands_over_what_it_would_run(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "path", list(sys.path))
  monkeypatch.setattr(sys, "argv", ["doctor", "--steps=3"])
  (tmp_path / "beside.py").write_text("VALUE = 3\n")
  program = tmp_path / "program.py"
  program.write_text("import sys\nimport beside\nfrom replicator import app\nwords = sys.argv\n"
                     "if __name__ == '__main__':\n  app.run(lambda workdir: (beside.VALUE, words))")
  assert doctor.load(str(program))("") == (3, [str(program)])
  assert sys.argv == ["doctor", "--steps=3"]
  program.write_text("from replicator import app")
  with pytest.raises(UsageError, match=r"does not call replicator\.app\.run"):
    doctor.load(str(program))
