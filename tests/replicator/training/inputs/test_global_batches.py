"""A `tf.data.Dataset` of global batches as the inputs: who gets which rows, and what is refused."""

import contextlib
import itertools

from replicator import InputContext, UsageError
from replicator.app import config
from replicator.step.microbatch import split
from replicator.training.inputs.pipeline import pipeline, stream
from tests.programs import logs
from tests.programs.processes import launched
from tests.programs.refusals import refusal
from tests.replicator.training.inputs.fit import BATCH, Fit, pairs
from tests.replicator.training.runs import MIRRORED_2, column, train

import gin
import numpy as np
import pytest
import tensorflow as tf


def taken(inputs, first_step: int = 0, steps_per_call: int = 1, **context) -> list:
  """All batches of a stream that ends, as lists of numbers."""
  found = []
  with pytest.raises(UsageError, match="ended"), contextlib.closing(
      stream(inputs, InputContext(**context), first_step, steps_per_call)) as batches:
    for batch in batches:
      found.append(batch.numpy().tolist())
  return found


def refused(dataset: tf.data.Dataset, size: int = 4, take: int = 10, steps_per_call: int = 1,
            first_step: int = 0) -> str:
  """The line on a data set, when some batches of it are taken."""
  def read() -> None:
    batches = stream(dataset, InputContext(size), first_step, steps_per_call)
    for _ in range(take):
      next(batches)
  return refusal(read)


# ---- Rows ---------------------------------------------------------------------------------------


NUMBERS = tf.data.Dataset.range(20)


@pytest.mark.parametrize("dataset", [NUMBERS.batch(4, drop_remainder=True), NUMBERS.batch(4)],
                         ids=["static", "of unknown size"])
def test_each_process_takes_its_rows_of_each_global_batch(dataset):
  of_all = [[4 * step + i for i in range(4)] for step in range(5)]
  for inputs in (dataset, lambda: dataset):
    assert taken(inputs, global_batch_size=4) == of_all
    for worker in (0, 1):
      context = {"global_batch_size": 4, "input_pipeline_id": worker, "num_input_pipelines": 2}
      own = [batch[2 * worker:2 * worker + 2] for batch in of_all]
      assert taken(inputs, **context) == own
      assert taken(inputs, first_step=3, **context) == own[3:]
      assert taken(inputs, steps_per_call=2, **context) == [own[:2], own[2:4]]
      assert pipeline(inputs, InputContext(**context)).element_spec.shape == [2]


def test_a_step_of_several_updates_gets_a_global_batch_for_each():
  dataset = NUMBERS.batch(4, drop_remainder=True)
  of_steps = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 10, 11], [12, 13, 14, 15]]]
  for workers in (1, 2):
    for worker in range(workers):
      found = taken(dataset, global_batch_size=4, input_pipeline_id=worker,
                    num_input_pipelines=workers, batches=2)
      rows = slice(4 // workers * worker, 4 // workers * (worker + 1))
      assert [[part.tolist() for part in split(np.array(step), 2)] for step in found] == [
          [batch[rows] for batch in step] for step in of_steps]
  assert taken(dataset, first_step=1, global_batch_size=4, batches=2) == [
      [8, 12, 9, 13, 10, 14, 11, 15]]


def test_all_tensors_of_a_batch_are_divided_alike():
  dataset = tf.data.Dataset.from_tensor_slices(
      {"x": tf.reshape(tf.range(24), [4, 3, 2]), "name": (tf.constant(list("abcd")),)}).batch(4)
  part = next(iter(pipeline(dataset, InputContext(4, 1, num_input_pipelines=2))))
  np.testing.assert_array_equal(part["x"], np.arange(24).reshape(4, 3, 2)[2:])
  assert part["name"][0].numpy().tolist() == [b"c", b"d"]


def test_a_function_with_defaults_returns_global_batches_and_one_with_a_context_its_part():
  @gin.configurable("some_pairs", module="tests")
  def whole(size=4):
    return NUMBERS.batch(size, drop_remainder=True)

  @gin.configurable("a_part", module="tests")
  def part(context, more=100):
    return NUMBERS.map(lambda x: x + more).batch(context.batch_size, drop_remainder=True)

  context = {"global_batch_size": 4, "input_pipeline_id": 1, "num_input_pipelines": 2}
  assert taken(whole, **context)[0] == [2, 3]
  assert taken(part, **context)[0] == [100, 101]


# ---- Training -----------------------------------------------------------------------------------


FIT = ["train.steps = 6", f"train.global_batch_size = {BATCH}", "train.precision = 'float64'",
       "train.checkpoint_every = 3"]


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
  """A run on one replica."""
  folder = tmp_path_factory.mktemp("one")
  train(folder, *FIT, step=Fit, inputs=pairs)
  config.parse([], [])
  return folder


@pytest.mark.parametrize("replicas", [2, 4])
def test_losses_and_variables_are_those_of_one_replica_in_float64(replicas, of_one, tmp_path):
  train(tmp_path, *FIT, MIRRORED_2[0], f"Replicator.logical_cpus = {replicas}", step=Fit,
        inputs=pairs)
  logs.assert_same_runs(tmp_path, of_one)


@pytest.mark.slow
def test_losses_and_variables_of_two_processes_are_those_of_one_in_float64(of_one, tmp_path):
  launched(["--workers=2"], "tests.replicator.training.inputs.fit", f"--workdir={tmp_path}",
           bindings=[*FIT, "train.log_every = 1", "train.eval_every = 0",
                     "Replicator.strategy = 'multi_worker_mirrored'"])
  logs.assert_same_runs(tmp_path, of_one)


def test_a_data_set_itself_trains_as_the_function_that_makes_it(of_one, tmp_path):
  tf.random.set_seed(0)  # As `train` has, before it calls the function.
  train(tmp_path, *FIT, step=Fit, inputs=pairs())
  logs.assert_same_runs(tmp_path, of_one)


def test_a_resumed_run_continues_bit_for_bit(of_one, tmp_path):
  for steps in (3, 6):
    train(tmp_path, *FIT, f"train.steps = {steps}", step=Fit, inputs=pairs)
  assert logs.rows(tmp_path) == logs.rows(of_one)
  expected = logs.variables(of_one)
  assert {name: x.tolist() for name, x in logs.variables(tmp_path).items()} == {
      name: x.tolist() for name, x in expected.items()}


def test_a_function_makes_the_same_batches_when_a_run_rolls_back():
  first, again = (itertools.islice(stream(pairs, InputContext(BATCH), step), 20 - step)
                  for step in (0, 13))  # In the second pass over the examples.
  for one, other in zip(list(first)[13:], again, strict=True):
    np.testing.assert_array_equal(one[0], other[0])


# ---- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("dataset, line", [
    (NUMBERS.batch(2, drop_remainder=True),
     "train: the data set has batches of 2, but train.global_batch_size = 4; write .batch(4, "
     "drop_remainder=True) where it is made, or train.global_batch_size = 2"),
    (NUMBERS,
     "train: the data set has single examples, with tensors of shape (); add .batch(4, "
     "drop_remainder=True), for train.global_batch_size"),
    (tf.data.Dataset.from_tensors((tf.zeros([8, 8, 1]), tf.zeros([3]))),
     "train: the data set has single examples, with tensors of shape (8, 8, 1), (3,); add "
     ".batch(4, drop_remainder=True), for train.global_batch_size"),
    (NUMBERS.map(lambda x: tf.RaggedTensor.from_row_lengths(tf.range(3), [1, 2])),
     "train: the data set has a RaggedTensor in its batches; a step takes tensors: add .map(...) "
     "with its to_tensor(), and pass the lengths too"),
    (NUMBERS.batch(6),
     "train: the batch of step 1 has 6 examples, but train.global_batch_size = 4; write "
     ".repeat().batch(4) where the data set is made, or train.global_batch_size = 6"),
    (NUMBERS.take(10).batch(4).repeat(),
     "train: the batch of step 3 has 2 examples, but train.global_batch_size = 4; write "
     ".repeat().batch(4) where the data set is made, or .batch(4, drop_remainder=True)"),
    (NUMBERS.batch(4, drop_remainder=True),
     "the data set ended before step 6: it has fewer batches than train.steps; add .repeat()")])
def test_a_data_set_that_does_not_fit(dataset, line):
  assert refused(dataset) == line


OTHER_FORMS = {
    "a RaggedTensor": lambda x: tf.RaggedTensor.from_row_lengths(tf.range(3), [1, 2]),
    "a SparseTensor": lambda x: tf.sparse.from_dense([[x]]), "None": lambda x: (x, None),
    "an Optional": tf.experimental.Optional.from_value, "a Dataset": tf.data.Dataset.from_tensors}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_what_is_no_tensor_is_one_line_however_batches_are_made(form):
  class Source:
    size = 8
    load = staticmethod(OTHER_FORMS[form])

  for inputs, makes in ((NUMBERS.map(OTHER_FORMS[form]), "the data set has"), (Source(), "Source "),
                        (lambda context: NUMBERS.map(OTHER_FORMS[form]), "the input function yie")):
    line = refused(inputs)
    assert line.startswith(f"train: {makes}") and f"{form} in its batches; a step takes" in line


def test_a_small_last_batch_is_named_where_a_call_makes_several_steps():
  assert refused(NUMBERS.take(10).batch(4).repeat(), steps_per_call=2).startswith(
      "train: the batch of step 3 has 2 examples, but train.global_batch_size = 4;")
  assert refused(NUMBERS.take(10).batch(4).repeat(), first_step=4).startswith(
      "train: the batch of step 6 has 2 examples, but train.global_batch_size = 4;")


def test_a_data_set_that_ends_names_the_step():
  four = NUMBERS.take(16).batch(4, drop_remainder=True)
  for options, step in [({}, 5), ({"first_step": 2}, 5), ({"first_step": 9}, 10),
                        ({"steps_per_call": 3}, 6)]:
    assert refused(four, **options).startswith(f"the data set ended before step {step}: it has")


def test_a_data_set_without_a_batch_is_not_told_to_repeat():
  none = "the data set has no full batch: it has fewer examples than one batch, or a filter"
  short = NUMBERS.take(3).batch(4, drop_remainder=True)
  drops_all = NUMBERS.filter(lambda x: x < 0)
  for dataset in (short, short.repeat(), drops_all.batch(4), drops_all.repeat().batch(4),
                  drops_all.batch(4).repeat()):
    assert refused(dataset).startswith(none)
  for options in ({"steps_per_call": 2}, {"first_step": 5}):
    for dataset in (short, short.repeat(), drops_all.batch(4), drops_all.repeat().batch(4)):
      assert refused(dataset, **options).startswith(none)
  assert refused(lambda _: short.repeat()).startswith(none)


def test_a_generator_that_is_used_up_is_not_told_to_repeat():
  once = iter(range(8))
  dataset = tf.data.Dataset.from_generator(
      lambda: once, output_signature=tf.TensorSpec([], tf.int64)).repeat().batch(4)
  assert refused(dataset).startswith(
      "the data set ended before step 3, though it repeats: a later pass has no examples, as with")


def test_another_error_of_a_data_set_is_passed_on():
  broken = NUMBERS.map(lambda x: tf.ensure_shape(tf.range(x), [3])).batch(4)
  with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
    next(stream(broken, InputContext(4)))


def test_what_a_function_without_arguments_must_return():
  assert refusal(pipeline, lambda: [1, 2], InputContext(4)) == (
      "the input function must return a tf.data.Dataset of batches, not list")


def test_a_data_set_that_ends_ends_the_run_in_one_line(tmp_path):
  with pytest.raises(UsageError, match=r"ended before step 3: .*; add \.repeat\(\)"):
    train(tmp_path, *FIT, step=Fit, inputs=pairs().take(2))
  assert list(column(tmp_path, "loss")) == [1, 2]
