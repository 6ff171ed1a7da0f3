"""Which variables a step holds, and by which paths."""

import functools
from collections.abc import Callable

import replicator
from replicator.step.optimizers.wrap import check_owners
from replicator.step.variables import variables_of
from replicator.training.checkpoints.names import networks_of
from tests.programs.two_networks import TwoNetworks, network

import keras
import numpy as np
import pytest
import tensorflow as tf


def ids(variables) -> set[int]:
  """Of TensorFlow's variables, those behind Keras' among them."""
  return {id(v.value if isinstance(v, keras.Variable) else v) for v in variables}


def found(step) -> set[int]:
  """The findings of `variables_of`, to compare with `ids`; nothing may come twice."""
  variables = variables_of(step)
  assert len(ids(variables.values())) == len(variables)
  return {id(v) for v in variables.values()}


class Holder(tf.Module):
  """A step with the given attributes."""

  def __init__(self, **attributes):
    super().__init__()
    for name, value in attributes.items():
      setattr(self, name, value)

  def __call__(self):
    return {}

  def method(self):
    return {}


# ---- What is found ------------------------------------------------------------------------------


def test_networks_optimizers_slots_and_averages_have_the_paths_of_attributes():
  step = TwoNetworks()
  generator, critic = step.optimizers["generator"], step.optimizers["critic"]
  # Adam has two slots for all variables, SGD with momentum one; both count and have a rate.
  assert len(generator.keras_optimizer.variables) == 2 + 2
  assert len(critic.keras_optimizer.variables) == 2 + 1
  assert found(step) == ids([
      *step.generator.variables, *step.critic.variables, *generator.averages,
      generator.nonfinite_updates, critic.nonfinite_updates,
      *generator.keras_optimizer.variables, *critic.keras_optimizer.variables])
  paths = {id(v): path for path, v in variables_of(step).items()}
  assert paths[id(generator.averages[4].value)] == "optimizers/generator/averages/4"
  assert paths[id(step.critic.weights[0].value)].startswith("critic/")


def test_layers_that_a_keras_model_keeps_in_lists_and_dicts():
  class Model(keras.Model):
    def __init__(self):
      super().__init__()
      self.blocks = [[keras.layers.Dense(2), replicator.SpectralNorm(keras.layers.Dense(3))]]
      self.heads = {"a": keras.layers.Dense(1), "b": keras.Sequential(
          [keras.layers.Dropout(0.5), keras.layers.Dense(1)])}

    def call(self, x):
      for block in self.blocks[0]:
        x = block(x)
      return {name: head(x) for name, head in self.heads.items()}

  model = Model()
  model(tf.zeros([1, 4]))
  assert len(model.variables) == 10  # With u, and the state of the dropout.
  assert found(Holder(model=model)) == ids(model.variables)


def test_lists_tuples_dicts_and_modules_in_modules():
  v = [tf.Variable(float(i)) for i in range(6)]
  step = Holder(list=[v[0], (v[1], {"name": v[2]})], inner=Holder(inner=Holder(variable=v[3])),
                dict={"a": {"b": v[4]}, 7: v[5]},
                a=1, b="b", c=None, d=[1.0], e=len, f=lambda x: x)  # These are nothing.
  assert {path: float(value) for path, value in variables_of(step).items()} == {
      "list/0": 0, "list/1/0": 1, "list/1/1/name": 2, "inner/inner/variable": 3, "dict/a/b": 4,
      "dict/7": 5}


def test_variables_and_generators_of_the_users_own():
  variable, seeds = keras.Variable(1.0), keras.random.SeedGenerator(1)
  assert found(Holder(temperature=variable, seeds=seeds)) == ids([variable, seeds.state])
  generator = tf.random.Generator.from_seed(1)
  assert variables_of(Holder(generator=generator)) == {"generator": generator}


def test_a_shared_variable_comes_once_and_a_module_that_refers_back_ends():
  net, v = network(1), tf.Variable(1.0)
  optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(), net.trainable_variables)
  step = Holder(a=net, b=[net, {"c": net.layers[0]}], v=v, w=v, optimizer=optimizer)
  assert found(step) == ids([
      *net.variables, v, *optimizer.keras_optimizer.variables, optimizer.nonfinite_updates])
  parent = Holder()
  parent.child = Holder(parent=parent, v=v)
  assert found(parent) == ids([v])


def test_what_layers_and_objects_lead_to_comes_last():
  class Layer(keras.layers.Layer):
    def __init__(self, **held):
      super().__init__()
      self.__dict__.update(held)

  v, w, kernel = tf.Variable(1.0), tf.Variable(2.0), keras.Variable(3.0)
  layer = Layer(hidden=[v], _own=w, kernel=kernel)
  assert variables_of(Holder(a=layer, b=[v], c={"kernel": kernel})) == {
      "b/0": v, "a/_own": w, "c/kernel": kernel.value}


class AnswersAll:
  """An object with an answer to every name, such as a structure of a simulator."""

  __slots__ = ("_rows",)

  def __getattr__(self, name: str) -> np.ndarray:
    return np.zeros(3)


class AnswersAllAndHolds(AnswersAll):
  """One that has attributes as well."""

  def __init__(self):
    self.variable = tf.Variable(0.0)


def test_objects_that_answer_to_every_name_are_searched_by_their_attributes():
  other = AnswersAllAndHolds()
  assert variables_of(Holder(slotted=[AnswersAll()], other=[other])) == {
      "other/0/variable": other.variable}


class Pair(keras.Model):
  """Networks with an optimizer, as a step or a part of one."""

  def __init__(self):
    super().__init__()
    self.one, self.other = network(1), network(1)
    self.optimizer_of_one = optimizer_of(self.one)
    self.scale = self.add_weight(shape=())


def test_a_keras_model_that_trains_is_no_network():
  pair = Pair()
  assert list(networks_of(pair)) == ["one", "other"]
  assert list(networks_of(Holder(pair=pair))) == ["pair/one", "pair/other"]
  expected = ids([*pair.one.variables, *pair.other.variables, pair.scale,
                  *pair.optimizer_of_one.keras_optimizer.variables,
                  pair.optimizer_of_one.nonfinite_updates])
  assert found(pair) == found(Holder(pair=pair)) == expected
  weights = {path for path in variables_of(pair) if path.startswith("one/")}
  assert weights == {f"one/{i:03d}" for i in range(len(network(1).variables))}


# ---- Who owns a variable ------------------------------------------------------------------------


def optimizer_of(*nets) -> replicator.Optimizer:
  return replicator.wrap_optimizer(
      keras.optimizers.SGD(), [v for net in nets for v in net.trainable_variables])


def test_a_variable_with_two_owners_is_refused_with_both_paths(tmp_path):
  generator, encoder = network(1), network(1)
  step = Holder(d_optimizer=optimizer_of(encoder), others={"ge": optimizer_of(generator, encoder)})
  message = (rf"'{encoder.trainable_variables[0].path}' belongs to two optimizers of the step, "
             "'d_optimizer' and 'others/ge'; pass it to only one")
  for start in (lambda: replicator.Replicator().run(step),
                lambda: replicator.train(lambda: step, workdir=str(tmp_path), steps=1)):
    with pytest.raises(replicator.UsageError, match=message):
      start()
  d_optimizer, ge_optimizer = step.d_optimizer, step.others["ge"]
  with pytest.raises(replicator.UsageError, match="'d_optimizer' and 'ge_optimizer'"):
    check_owners(lambda batch: (d_optimizer.apply(batch), ge_optimizer.apply(batch)))


def test_one_owner_on_several_paths_is_one():
  net = network(1)
  optimizer = optimizer_of(net)
  optimizer_of(net)  # It belongs to another program.
  check_owners(Holder(net=net, a=optimizer, b=[optimizer], c=optimizer_of(network(1))))


# ---- Steps that are functions -------------------------------------------------------------------


NET = network(1)


def use_global(batch):
  return NET(batch)


def test_globals_and_defaults_of_a_function():
  for step in (use_global, lambda batch: {"loss": use_global(batch)},
               lambda batch: [NET(x) for x in batch], lambda batch, net=NET: net(batch),
               lambda batch, *, net=NET: net(batch)):
    assert found(step) == ids(NET.variables), step


def test_closures_of_a_function_and_of_those_it_calls():
  nets = [network(1) for _ in range(3)]
  inner = lambda batch: nets[0](batch)

  def step(batch, net=nets[1]):
    return {"loss": inner(batch) + net(batch)}

  assert found(step) == ids([v for net in nets for v in net.variables])


def test_partials():
  a, b, c = (tf.Variable(float(i)) for i in range(3))
  closed = lambda *args, **kwargs: a
  step = functools.partial(functools.partial(closed, [b]), c={"d": c})
  assert found(step) == ids([a, b, c])


def test_a_method_alone_and_in_a_closure():
  v = tf.Variable(1.0)
  holder = Holder(v=v)
  assert found(holder.method) == found(lambda: holder.method()) == ids([v])


# ---- Paths stay ---------------------------------------------------------------------------------


def a_function() -> Callable:
  net = network(1)
  optimizer = replicator.wrap_optimizer(keras.optimizers.Adam(), net.trainable_variables)
  return lambda batch: optimizer.apply(net(batch))


class Scale(keras.layers.Layer):
  """A layer of variables without names."""

  def __init__(self):
    super().__init__()
    self.scale = keras.Variable(1.0)
    self.offset = self.add_weight(shape=())


def test_paths_are_sorted_and_the_same_when_a_step_is_built_again():
  # Keras numbers what it names: the second `Sequential` of a process is 'sequential_1'.
  for make, count in ((TwoNetworks, 20), (lambda: Holder(layer=Scale()), 2), (a_function, 2)):
    paths = list(variables_of(make()))
    assert len(paths) >= count
    assert list(variables_of(make())) == paths == sorted(paths)
