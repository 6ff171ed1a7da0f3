"""Steps and inputs of every kind, and what is logged of them."""

import json

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError, random
from replicator.step.variables import variables_of
from tests.programs.logs import rows
from tests.programs.two_networks import Points
from tests.replicator.training.runs import MIRRORED_2, column, make_function, train

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def test_a_plain_function_trains(tmp_path):
  step = train(tmp_path, "train.steps = 30", step=make_function, inputs=Points())
  values = list(column(tmp_path, "loss").values())
  assert values[-1] < values[0] / 2
  # 3 weights and 4 of the batch norm; iterations, learning rate, 2 slots for all; a counter.
  assert len(variables_of(step)) == 7 + 2 + 2 + 1


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
    return {"position": tf.reduce_mean(tf.cast(position, "float32")),
            "step": tf.reduce_max(step)}

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
  with pytest.raises(UsageError, match=r"ended before train.steps; make it repeat\(\)"):
    train(tmp_path, "train.steps = 6", step=lambda: lambda x: {"x": tf.reduce_mean(x)},
          inputs=short)
  assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_run_that_failed_has_a_report_of_it_and_one_that_did_not_begin_has_none(tmp_path):
  def fails():
    raise ValueError("of the user")

  for name, step, kind in (("failed", fails, ValueError),
                           ("refused", lambda: {"loss": tf.zeros([2])}, UsageError)):
    with pytest.raises(kind):
      train(tmp_path / name, "train.steps = 1", step=lambda step=step: step)
  ended = [json.loads((tmp_path / name / "run.json").read_text()).get("ended")
           for name in ("failed", "refused")]
  assert ended[0].startswith("failed: ") and ended[0].endswith("ValueError: of the user")
  assert "of the user" in (tmp_path / "failed" / "report.html").read_text()
  assert ended[1] is None and not (tmp_path / "refused" / "report.html").exists()
