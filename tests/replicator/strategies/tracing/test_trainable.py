"""Freezing between calls: obeyed by the compiled step, and restored with a checkpoint."""

import functools
import itertools
import json

from replicator import Replicator
from replicator.step.variables import variables_of
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.tracing.trainable import Trainable
from replicator.training.divergence.diagnostics import Signals
from tests.programs.features import Regression
from tests.programs.logs import rows
from tests.programs.planted_bugs import WIDTH, Points
from tests.replicator.training.runs import train

import numpy as np

X = np.float32(np.random.default_rng(0).normal(size=[8, WIDTH]))
BATCH = {"x": X, "y": X[:, :1]}
TwoLayers = functools.partial(Regression, ema_decay=0.5)


def values(step: Regression) -> dict[str, np.ndarray]:
  return {path: v.numpy() for path, v in variables_of(step).items()}


def moved(before: dict, after: dict) -> set[str]:
  return {path for path in before if not np.array_equal(before[path], after[path])}


def test_flags_that_changed_come_back_and_no_others():
  step, other = TwoLayers(), TwoLayers()
  found, its = Trainable(step), Trainable(other)
  assert found.changes() == {}
  step.network.layers[0].trainable = False
  step.network.layers[1].bias.trainable = False
  changes = json.loads(json.dumps(found.changes()))
  assert len(changes) == 4  # A layer and its two variables, and a variable.
  other.network.trainable = False
  its.restore(changes)
  assert its.flags() == found.flags() and other.network.trainable
  assert other.network.layers[1].kernel.trainable
  its.restore({})
  assert its.changes() == {}


def test_a_running_step_obeys_every_change(two):
  with two.scope():
    step = TwoLayers()
  function = CompiledStep(two, step, 1, logs=True, hooks=[Signals(step)])
  first, second = ({f"network/{i:03d}" for i in places} for places in ((0, 1), (2, 3)))
  history, running = [values(step)], []
  for trainable in ((True, True), (False, True), (True, True), (False, False)):
    for layer, flag in zip(step.network.layers, trainable, strict=True):
      layer.trainable = flag
    running.append(function(0, BATCH))  # The results of all calls are fetched afterwards.
    history.append(values(step))
  found = [moved(*pair) & (first | second) for pair in itertools.pairwise(history)]
  assert found == [first | second, second, first | second, set()]
  assert [list(result.fetch()[0]) for result in running] == [
      *[["loss", "grad_norm/optimizer"]] * 3, ["loss"]]
  assert step.optimizer.keras_optimizer.iterations.numpy() == 3


def test_each_combination_is_traced_once():
  traced = []

  class Counted(Regression):
    def __call__(self, batch):
      traced.append(self.network.layers[0].trainable)
      return super().__call__(batch)

  step = Counted()
  replicator = Replicator()
  function = CompiledStep(replicator, step, 1, logs=True)
  for trainable in (True, False, True, False):
    step.network.layers[0].trainable = trainable
    function(0, BATCH).fetch()
    replicator.run(step, BATCH)
  assert traced == [True, True, False, False]


def freezes_once(step: Regression, number: int) -> None:
  """A resumed run does not come past these steps again."""
  if number in (3, 9):
    step.network.layers[0].trainable = number == 9
  if number in (5, 7):
    step.network.layers[1].trainable = number == 7


def test_a_resumed_run_is_as_frozen_as_the_other(tmp_path):
  run = functools.partial(train, step=TwoLayers, inputs=Points(), before_call=freezes_once)
  settings = ["train.log_every = 2", "train.checkpoint_every = 2"]
  whole = run(tmp_path / "whole", "train.steps = 10", *settings)
  for steps in (4, 10):  # One layer or none is frozen at the end of each part.
    parts = run(tmp_path / "parts", f"train.steps = {steps}", *settings)
  assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
  assert moved(values(whole), values(parts)) == set()
  assert Trainable(parts).flags() == Trainable(whole).flags()
