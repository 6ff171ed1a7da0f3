"""Layers and their weights by name, in a run that starts from another one, or resumes."""

import pathlib

from replicator import Replicator
from replicator.training.checkpoints.saver import Saver
from replicator.training.checkpoints.start_from import StartFrom
from tests.programs.refusals import refusal
from tests.replicator.training.checkpoints import runs

import keras
import pytest
import tensorflow as tf


def begin(source: pathlib.Path, step) -> tuple[dict, list[str]]:
  return StartFrom(str(source)).begin(step, Replicator(), pathlib.Path("none"))


def save(step, folder: pathlib.Path) -> pathlib.Path:
  runs.save(folder / "checkpoints", step, 1)
  return folder


def chain(*layers) -> keras.Sequential:
  return keras.Sequential([keras.Input([3]), *layers])


def named(*names: str) -> keras.Sequential:
  return chain(*(keras.layers.Dense(3, name=name) for name in names))


class Blocks(keras.Model):
  """Named layers in a list."""

  def __init__(self, *names: str):
    super().__init__()
    self.blocks = [keras.layers.Dense(3, name=name) for name in names]
    for block in self.blocks:
      block.build((None, 3))
    self.built = True


def functional(*names: str) -> keras.Model:
  x = inputs = keras.Input([3])
  for name in names:
    x = keras.layers.Dense(3, name=name)(x)
  return keras.Model(inputs, x)


class Holding(tf.Module):
  """A step of one network, whose weights count up."""

  def __init__(self, net: keras.Model, first: float = 0.0):
    super().__init__()
    self.net = net
    for number, variable in enumerate(net.variables):
      if variable.dtype != "uint32":
        variable.assign(tf.fill(variable.shape, first + number))


@pytest.mark.parametrize("make", [named, Blocks, functional])
def test_a_layer_is_found_by_the_name_that_a_user_gave_it(make, tmp_path):
  source = save(Holding(make("first", "second", "third")), tmp_path / "source")
  step = Holding(make("first", "between", "second", "third"), first=100.0)
  facts, lines = begin(source, step)
  assert [float(v.numpy().max()) for v in step.net.variables] == [0, 1, 102, 103, 2, 3, 4, 5]
  assert all("between" in name for name in facts["not_taken"]) and len(facts["not_taken"]) == 2
  assert not any(line.startswith("in order") for line in lines)


def test_the_order_of_layers_with_names_does_not_matter(tmp_path):
  source = save(Holding(named("first", "second")), tmp_path / "source")
  begin(source, step := Holding(named("second", "first")))
  assert [float(v.numpy().max()) for v in step.net.variables] == [2, 3, 0, 1]


def test_layers_of_other_classes_do_not_move_those_without_names(tmp_path):
  dense = keras.layers.Dense
  source = save(Holding(chain(dense(3), dense(3), dense(3))), tmp_path / "source")
  step = Holding(chain(dense(3), keras.layers.Dropout(0.5), dense(3),
                       keras.layers.LayerNormalization(), dense(3)), first=100.0)
  _, lines = begin(source, step)
  kernels = [float(layer.kernel.numpy().max()) for layer in step.net.layers
             if isinstance(layer, dense)]
  assert kernels == [0, 2, 4] and not any(line.startswith("in order") for line in lines)


def test_more_layers_without_a_name_are_taken_in_order_and_a_line_says_so(tmp_path):
  dense = keras.layers.Dense
  source = save(Holding(chain(dense(3), dense(3, name="head"))), tmp_path / "source")
  _, lines = begin(source, step := Holding(chain(dense(3), dense(3), dense(3, name="head"))))
  assert float(step.net.layers[2].kernel.numpy().max()) == 2
  assert [line for line in lines if line.startswith("in order")] == [
      "in order    net/layers/dense: 2 here, 1 in the other run; layers without a name=... are "
      "matched in order"]


def test_names_that_are_not_unique_leave_the_place(tmp_path):
  source = save(Holding(Blocks("same", "same")), tmp_path / "source")
  begin(source, step := Holding(Blocks("same", "same"), first=100.0))
  assert [float(v.numpy().max()) for v in step.net.variables] == [0, 1, 2, 3]


def test_a_run_does_not_resume_with_its_named_layers_in_another_order(tmp_path):
  save(Holding(named("first", "second")), tmp_path)
  line = refusal(Saver(tmp_path / "checkpoints", Holding(named("second", "first"))).restore)
  assert "'net/000' was net/first/kernel and is net/second/kernel" in line
