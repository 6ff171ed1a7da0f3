"""The doctor finds planted bugs and names their causes, and finds none in sound steps."""

import os

import replicator
from replicator import UsageError
from replicator.doctor import replica_check
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, CheckResult
from replicator.step import context
from tests.programs import planted_bugs
from tests.replicator.doctor.checks import examine, largest, planted

import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("restored")

LOSS = "first: loss 'loss' at step 1"


def examine_determined(bug: str) -> replica_check.ReplicaCheck:
  """Spares a planted bug the second recording of one replica, which says the same each time."""
  found = examine(planted(bug), steps=1)
  found._differs_again = None
  return found


def check_row(row: CheckResult, first: str, cause: str) -> None:
  assert row.verdict == DIFFERS and largest(row) > 1e-4
  found_first, found_cause, *_ = row.notes
  assert found_first.startswith(first)
  assert found_cause.startswith(f"likely cause: {cause}")


@pytest.mark.parametrize(("bug", "first", "cause"), [
    ("clipping", "first: gradient 'optimizer, update 1: network/000'",
     "clipping before aggregation: tf.clip_by_global_norm at tests/"),
    ("dropout", LOSS, "a Keras Dropout layer at tests/programs/planted_bugs.py:"),
    pytest.param("numpy", LOSS, "np.random was called while the step was traced",
                 marks=pytest.mark.slow),
    ("unaveraged_variable", "first: variable 'latest' ", "a variable is assigned a value that one "
     "replica computed from its own examples; average a statistic first with replicator.all_mean; "
     "keep examples, as in a pool"),
    pytest.param("joined", LOSS,
                 "a replicator.Dropout layer draws at tests/programs/planted_bugs.",
                 marks=pytest.mark.slow),
    ("weights", "first: variable 'network/003' (sequential/dense_1/bias) before the first step",
     "initial weights differ"),
])
def test_a_planted_bug_is_found_on_two_replicas_and_named(bug, first, cause):
  check_row(next(examine_determined(bug).results([])), first, cause)


def test_a_planted_bug_is_found_on_two_replicas_and_in_micro_batches():
  found = examine_determined("local_batch_norm")
  for part, row in (("replica", next(found.results([]))),
                    ("micro-batch", found._microbatch_result())):
    check_row(row, LOSS, "local batch norm: Keras BatchNormalization computes the statistics of "
                         f"each {part} separately (sequential/batch_normalization)")


def test_a_step_that_is_not_deterministic_is_no_proof_of_another_cause():
  check_row(next(examine(planted("unseeded"), steps=1).results([])), LOSS,
            "the step is not deterministic")


def test_an_input_that_is_not_deterministic_is_blamed_before_the_step():
  rng = np.random.default_rng()  # As of a shuffle without a seed.

  def points(context):
    examples = {"x": rng.normal(size=[8, 3]), "y": np.zeros([8, 1]),
                "name": [str(rng.random())] * 8}
    return tf.data.Dataset.from_tensors(examples).repeat()

  row = next(examine(steps=1, main=lambda workdir: replicator.train(
      planted_bugs.Regression, points, workdir=workdir)).results([]))
  assert row.notes[0].startswith("first: batch 'name' at step 1: ")
  assert row.notes[1].startswith("likely cause: the input is not deterministic: two runs on one ")


def test_a_step_that_is_not_finite_proves_nothing():
  class Broken(planted_bugs.Regression):
    def __call__(self, batch):
      return super().__call__({name: tf.cast(x, tf.float64) / 0.0 for name, x in batch.items()})

  with pytest.raises(UsageError, match=r"a gradient of step 1 is not finite .*prove nothing"):
    examine(main=lambda workdir: replicator.train(Broken, planted_bugs.Points(), workdir=workdir))


def test_layers_of_two_precisions_are_named():
  def main(workdir):
    replicator.train(lambda: Mixed(), planted_bugs.Points(), workdir=workdir)

  class Mixed(tf.Module):
    def __init__(self):
      super().__init__()
      self.wide, self.narrow = (keras.Variable(1.0, dtype=each) for each in ("float64", "float32"))
      self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.1),
                                                 [self.wide, self.narrow])

    def __call__(self, batch):
      return {"loss": self.optimizer.minimize(lambda: tf.square(self.wide.value) + tf.cast(
          self.narrow.value, tf.float64) ** 2)}

  with pytest.raises(UsageError, match=r"is float32, and .* is float64: only one dtype can be"):
    examine(main=main)


def test_a_sound_step_agrees_and_only_its_steps_are_run():
  folders, numbers = [], []

  def make_step():
    step = planted_bugs.Regression(norm="global")
    step.optimizer = replicator.wrap_optimizer(keras.optimizers.Lion(0.01), step.variables_learned)
    return step

  def main(workdir):
    folders.append(workdir)
    replicator.train(make_step, planted_bugs.Points(), workdir=workdir,
                     evaluate=lambda step: pytest.fail("evaluated"),
                     before_call=lambda step, number: numbers.append(
                         (number, int(context.step_number()))))
    pytest.fail("continued after the training")

  # Steps of several in a call are compared one by one.
  found = examine("train.steps_per_call = 10", "train.log_every = 10", main=main)
  assert next(found.results([])).verdict == AGREES
  assert numbers == 2 * [(0, 0), (1, 1)]
  assert len(folders) == 2 and not any(os.path.exists(folder) for folder in folders)
  values = found.reference.quantities
  for step in (1, 2):  # The moving statistics, 4 and 5, have no gradients.
    assert {name for s, kind, name in values if (s, kind) == (step, "gradient")} == {
        f"optimizer, update 1: network/{number:03d}" for number in (0, 1, 2, 3, 6, 7)}
  # The true gradient of the bias before the batch norm is zero, and the bias stays there.
  assert not any(values[2, "variable", "network/001"])
  assert all(np.any(values[2, "variable", path]) for path in ("network/000", "network/006"))


def test_batch_statistics_are_compared_in_the_same_micro_batches():
  row = examine("Regression.norm = 'global'", steps=1)._microbatch_result()
  assert row.verdict == AGREES
  assert "compared on 2 replicas with 2 micro-batches on 1" in row.notes[0]


def test_a_variant_that_fails_says_where_and_why():
  row = next(examine(planted("global_generator"), steps=1).results([]))
  assert row.verdict == FAILED and "planted_bugs.py" in row.detail
  assert "likely cause: a keras.random draw at tests/programs/planted_bugs.py:" in row.notes[0]
  row = next(examine(planted("branch"), "Regression.accumulates = False", steps=1).results([]))
  assert row.verdict == FAILED and "called inside a tf.cond, tf.while_loop" in row.detail


@pytest.mark.slow
def test_in_float32_a_sound_step_agrees_loosely_and_a_bug_does_not():
  found = examine(precision="float32")
  row = next(found.results([]))
  assert row.verdict == AGREES and 1e-9 < largest(row) < 1e-5
  assert next(examine(planted("sum"), precision="float32").results([])).verdict == DIFFERS
