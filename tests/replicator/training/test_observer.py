"""An observer that is installed around a program sees its training, and can end the program."""

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.training.observer import Observer, Training, current, observed_by
from tests.programs.two_networks import Points
from tests.replicator.training.runs import train


def numbers(context):
  return tf.data.Dataset.from_tensors(tf.zeros([context.batch_size])).repeat()


class ManyPoints(Points):
  size = 1500


class Recorder(Observer):
  """Keeps the order of what it receives."""

  def __init__(self):
    self.events: list[object] = []

  def prepared(self, training):
    self.events.append(training.step)

  def run_step(self, step, *batch):
    self.events.append([part.shape.as_list() for part in batch])
    return step(*batch)

  def batch(self, step, batch):
    self.events.append((step, batch.shape.as_list()))

  def saved(self, step, checkpoints):
    self.events.append(f"saved {step}")


def test_an_observer_sees_the_training(tmp_path):
  recorder = Recorder()
  with observed_by(recorder):
    step = train(tmp_path, "train.steps = 4", "train.steps_per_call = 2", "train.log_every = 2",
                 "train.checkpoint_every = 2", "train.global_batch_size = 2",
                 step=lambda: lambda x: {"mean": tf.reduce_mean(x)}, inputs=numbers)
  assert recorder.events == [step, (0, [2, 2]), [[2]], "saved 2", (2, [2, 2]), "saved 4"]
  assert type(current()) is Observer


def prepared(step, inputs=None) -> Training:
  return Training(replicator.Replicator(), step, inputs, replicator.InputContext(2))


def test_the_trained_parameters_of_each_network_are_counted():
  step = tf.Module()
  step.critic = keras.Sequential([
      keras.Input([2]), keras.layers.Dense(3), replicator.GlobalBatchNorm()])
  step.heads = [keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]) for _ in range(2)]
  # A batch norm keeps two statistics for each of three channels, which are not trained.
  assert prepared(step).parameters() == {"critic": 9 + 6, "heads/0": 3, "heads/1": 3}
  step.critic.layers[0].trainable = step.heads[0].trainable = False
  assert prepared(step).parameters() == {"critic": 6, "heads/1": 3}
  assert prepared(lambda: {}).parameters() == {}


@pytest.mark.parametrize("inputs, words", [
    (None, "made by the step"), (numbers, "numbers"), (ManyPoints(), "ManyPoints, 1,500 examples")])
def test_the_data_have_a_name(inputs, words):
  assert prepared(lambda: {}, inputs).data() == words


def test_stop_and_an_error_of_the_program_end_the_observation():
  observer = Observer()
  with observed_by(observer):
    try:
      current().stop()
    except Exception:
      pytest.fail("a handler of the program caught it")
    pytest.fail("the program continued")
  assert current() is not observer
  with pytest.raises(ValueError, match="of the program"), observed_by(observer):
    raise ValueError("of the program")
  assert current() is not observer
