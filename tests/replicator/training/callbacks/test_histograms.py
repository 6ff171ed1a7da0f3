"""Histograms of weights and gradients, and the ratio of an update to the weights."""

import replicator
from replicator import Histograms, Replicator
from tests.programs.closeness import nests_close
from tests.programs.logs import rows
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest
import tensorflow as tf

TARGET = np.array([[1.0], [2.0]])


class Line(tf.Module):
  """Two weights that move to a target: the gradient is `weights - target`, and SGD's rate 0.1."""

  def __init__(self):
    super().__init__()
    self.weights = keras.Variable(np.array([[4.0], [-2.0]]), name="line")
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.1), [self.weights])

  def __call__(self):
    loss = self.optimizer.minimize(
        lambda: 0.5 * tf.reduce_sum((self.weights.value - TARGET) ** 2))
    return {"loss": loss}


def trained(workdir, histograms, **settings) -> None:
  replicator.train(Line, workdir=workdir, callbacks=[histograms], **{
      "steps": 4, "log_every": 2, "eval_every": 0, "checkpoint_every": 0, "precision": "float64",
      **settings})


def histograms_of(workdir) -> dict[tuple[int, str], np.ndarray]:
  """The `[buckets, 3]` of each histogram, by step and name."""
  return {(event.step, value.tag): tf.make_ndarray(value.tensor)
          for file in workdir.glob("events.out.tfevents.*")
          for record in tf.data.TFRecordDataset(str(file))
          for event in [tf.compat.v1.Event.FromString(record.numpy())]
          for value in event.summary.value
          if value.metadata.plugin_data.plugin_name == "histograms"}


@pytest.mark.parametrize("replicas", [1, 2])
def test_weights_gradients_and_updates_are_those_of_the_last_step(replicas, tmp_path):
  trained(tmp_path, Histograms(), replicator=Replicator("mirrored", logical_cpus=replicas))
  found = histograms_of(tmp_path)
  assert {step for step, _ in found} == {2, 4}
  weights = [TARGET + 0.9 ** n * (np.array([[4.0], [-2.0]]) - TARGET) for n in range(5)]
  for step in (2, 4):
    (of_weights,) = (x for (at, name), x in found.items() if at == step and "weights/" in name)
    (gradients,) = (x for (at, name), x in found.items() if at == step and "gradients/" in name)
    before, after = weights[step - 1], weights[step]
    assert of_weights[:, 2].sum() == gradients[:, 2].sum() == 2
    nests_close([of_weights[0, 0], of_weights[-1, 1]], [after.min(), after.max()], 1e-6)
    nests_close([gradients[0, 0], gradients[-1, 1]],
                [(before - TARGET).min(), (before - TARGET).max()], 1e-6)
    ratio = np.linalg.norm(after - before) / np.linalg.norm(before)
    row = next(row for row in rows(tmp_path) if row["step"] == step)
    assert row["update_ratio/optimizer"] == pytest.approx(ratio, rel=1e-12)


def test_the_ratio_is_that_of_all_updates_of_a_step(tmp_path):
  class Twice(Line):
    def __call__(self):
      super().__call__()
      return super().__call__()

  replicator.train(Twice, workdir=tmp_path, callbacks=[Histograms()], steps=2, log_every=2,
                   eval_every=0, checkpoint_every=0, precision="float64")
  before, after = (TARGET + 0.9 ** n * (np.array([[4.0], [-2.0]]) - TARGET) for n in (2, 4))
  ratio = np.linalg.norm(after - before) / np.linalg.norm(before)
  assert rows(tmp_path)[-1]["update_ratio/optimizer"] == pytest.approx(ratio, rel=1e-12)


def test_they_change_nothing_in_the_training(tmp_path):
  trained(tmp_path / "with", Histograms(every=1))
  trained(tmp_path / "without", Histograms(gradients=False))
  losses = [[row["loss"] for row in rows(tmp_path / name) if "loss" in row]
            for name in ("with", "without")]
  assert losses[0] == losses[1]
  assert not any("gradients" in name for _, name in histograms_of(tmp_path / "without"))


def test_gradients_of_several_steps_in_a_call_are_refused(tmp_path):
  said = refusal(trained, tmp_path, Histograms(), steps_per_call=2)
  assert said.startswith("Histograms.begin at step 0: Histograms.gradients = True: needs train.")
