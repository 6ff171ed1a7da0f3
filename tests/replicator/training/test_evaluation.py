"""What an evaluation may find, and the functions that `train` calls."""

import json

from replicator import Evaluation, RunFailed
from tests.programs.counter import Counter
from tests.programs.logs import timed_rows
from tests.programs.refusals import refusal
from tests.replicator.training import runs

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.parametrize("make, message", [
    (lambda: Evaluation([0.5]), "Evaluation: the scalars are a list; pass a dict, such as"),
    (lambda: Evaluation({"score": np.zeros([2])}), "the scalar 'score' is float64 [2]; use a n"),
    (lambda: Evaluation({"score": "0.5"}), "the scalar 'score' is a str; use a name and one num"),
    (lambda: Evaluation({"score": None}), "the scalar 'score' is a NoneType; use a name and one"),
    (lambda: Evaluation({"score": [0.5, [1]]}), "the scalar 'score' is a list; use a name and"),
    (lambda: Evaluation({1: 0.5}), "the scalar 1 is a float; use a name and one number"),
    (lambda: Evaluation({"step": 1}), "'step' is a int; use a name other than step and seconds"),
    (lambda: Evaluation({}, np.zeros([2, 2, 3])), "the images are a ndarray; pass a dict, such a"),
    (lambda: Evaluation({}, {"a": np.ones([2, 2, 4])}), "'a' is float64 [2, 2, 4]; use uint8 [h"),
    (lambda: Evaluation({}, {"a": np.ones([2, 2, 3], np.int32)}), "'a' is int32 [2, 2, 3]; use "),
    (lambda: Evaluation({}, {"a": np.full([2, 2], 1.5)}), "has values from 1.5 to 1.5; scale floa"),
    (lambda: Evaluation({}, {"a": np.full([2, 2], np.nan)}), "has values from nan to nan; scale f"),
    (lambda: Evaluation({}, {3: np.ones([2, 2])}), "the name 3 is a int; use a non-empty stri"),
    (lambda: Evaluation({}, histograms={"a": ["x"]}), "the histogram 'a' is a list; pass an arra"),
])
def test_an_evaluation_of_another_form_is_refused(make, message):
  assert refusal(make).startswith("Evaluation: ") and message in refusal(make)


def test_numbers_images_and_histograms_of_tensorflow_are_taken():
  number = tf.constant(0.5, tf.bfloat16)
  found = Evaluation({"score": number, "count": np.int64(3)},
                     {"color": tf.zeros([2, 2, 3], tf.uint8), "gray": tf.constant([[0.0, 0.5]])},
                     histograms={"h": tf.constant([[1.0, np.nan], [np.inf, 2.0]])})
  assert found.scalars == {"score": 0.5, "count": 3.0}
  assert found.images["color"].shape == (2, 2, 3)
  assert found.images["gray"].tolist() == [[[0] * 3, [128] * 3]]
  assert found.histograms["h"].tolist() == [1.0, 2.0]


def test_a_run_that_an_evaluation_ends_says_so(tmp_path):
  outcomes = iter([{"score": 0.5}, {"score": None}])
  said = refusal(runs.train, tmp_path, "train.steps = 4", "train.eval_every = 2", step=Counter,
                 evaluate=lambda step: Evaluation(next(outcomes)))
  assert f"failed: {said.partition(' ')[0]}" in (tmp_path / "report.html").read_text()


def test_functions_that_take_more_by_another_way_are_called(tmp_path):
  @gin.configurable(module="tests")
  def evaluates(step, number):
    return Evaluation({"number": number})

  runs.train(tmp_path, "train.steps = 1", "train.eval_every = 1", "evaluates.number = 3",
             step=Counter, evaluate=evaluates)
  assert timed_rows(tmp_path)[-1]["eval/number"] == 3


@pytest.mark.parametrize("functions, message", [
    ({"evaluate": lambda step: {"score": 0.5}}, "evaluate returned a dict; return replicator.Ev"),
    ({"evaluate": lambda: Evaluation({})}, "train: evaluate is called with the step; write def ev"),
    ({"before_call": lambda step: None},
     "train: before_call is called with the step and its number; write def before_call(step, numb"),
    ({"before_call": 3}, "train: before_call is a int; pass a function of (step, number)")])
def test_functions_of_another_form_are_refused(functions, message, tmp_path):
  assert refusal(runs.train, tmp_path, "train.steps = 1", "train.eval_every = 1", step=Counter,
                 **functions).startswith(message)


def test_an_evaluation_of_images_alone_is_shown_and_cannot_say_what_is_best(tmp_path, capsys):
  evaluate = lambda step: Evaluation({}, {"samples": np.zeros([2, 2], np.uint8)})
  runs.train(tmp_path, "train.steps = 2", "train.eval_every = 1",
             "Checkpoints.keep_best = 'eval/score'", step=Counter, evaluate=evaluate)
  lines = capsys.readouterr().out.splitlines()
  assert "step 1  images samples" in lines
  assert len([line for line in lines if "keep_best = 'eval/score'" in line]) == 1


class Doubling(keras.Sequential):
  """A network with the weight 2."""

  def __init__(self):
    super().__init__([keras.Input([1]), keras.layers.Dense(
        1, kernel_initializer=keras.initializers.Constant(2.0))])


class HoldsNetwork(Counter):
  """A step with a network."""

  def __init__(self):
    super().__init__()
    self.net = Doubling()


def by_keras(step: HoldsNetwork) -> Evaluation:
  x, y = np.float32([[1], [3]]), np.float32([[1], [1]])
  step.net.compile(loss="mse")
  return Evaluation({"mean": float(step.net.predict(x, verbose=0).mean()),
                     "loss": float(step.net.evaluate(x, y, verbose=0))})


def test_predict_and_evaluate_of_keras_compute_in_the_process_that_calls_them(tmp_path):
  runs.train(tmp_path, "train.steps = 1", "train.eval_every = 1", *runs.MIRRORED_2,
             step=HoldsNetwork, evaluate=by_keras)
  assert runs.column(tmp_path, "eval/mean") == {0: 4.0, 1: 4.0}  # (2 + 6) / 2.
  assert runs.column(tmp_path, "eval/loss") == {0: 13.0, 1: 13.0}  # (1 + 25) / 2.


class Doubtful(Counter):
  """A step that doubts large counts."""

  def doubts(self, scalars):
    return {"large": f"count is {scalars['count']}"} if scalars["count"] > 2 else {}


def test_each_doubt_of_a_step_is_said_once(tmp_path, capsys):
  runs.train(tmp_path, "train.steps = 6", step=Doubtful)
  lines = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
  assert len(lines) == len(set(lines)) == 1 and lines[0].endswith(" is 3.0")


@pytest.mark.parametrize("results, fails", [
    ([np.nan, np.nan], True), ([0.5, np.nan], False), ([np.nan, 0.5], False)])
def test_a_run_whose_evaluations_found_nothing_is_not_done(results, fails, tmp_path):
  outcomes = iter(results)
  evaluate = lambda step: Evaluation({"score": next(outcomes), "steps": 3.0}, axes=("steps",))
  train = lambda *more: runs.train(tmp_path, "train.steps = 4", "train.eval_every = 4",
                                   "train.checkpoint_every = 4", step=Counter, evaluate=evaluate)
  if not fails:
    train()
    return
  with pytest.raises(RunFailed, match=r"^all evaluations returned only NaN, for eval/score: "):
    train()
  facts = json.loads((tmp_path / "run.json").read_text())
  assert facts["ended"].startswith("failed: ") and (tmp_path / "checkpoints").exists()
