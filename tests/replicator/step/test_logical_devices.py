"""Model parallelism: what is on which device, and that it trains as on one."""

import functools
import re

import replicator
from replicator import Replicator, logical_device
from replicator.step.variables import variables_of
from tests.programs.closeness import nests_close
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest
import tensorflow as tf

SPLIT = [("mirrored", 4), ("one_device", 2)]
BATCHES = np.random.default_rng(0).normal(size=[5, 8, 3])


class Halves(tf.Module):
  """A regression whose network has its second half on another device.

  Args:
    second_device: the logical device of the second half.
  """

  def __init__(self, second_device: int = 1):
    super().__init__()
    self.second_device = second_device
    keras.utils.set_random_seed(1)
    # Built under no logical device: that is device 0.
    self.first = keras.Sequential(
        [keras.Input([3]), keras.layers.Dense(4, activation="tanh")], name="first")
    with logical_device(second_device):
      self.second = keras.Sequential([
          keras.Input([4]), replicator.SpectralNorm(keras.layers.Dense(5, use_bias=False)),
          replicator.GlobalBatchNorm(), keras.layers.ReLU(), keras.layers.Dense(1)], name="second")
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.Adam(0.01),
        self.first.trainable_variables + self.second.trainable_variables, ema_decay=0.9)

  def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
    with tf.GradientTape() as tape:
      with logical_device(0):
        codes = self.first(x)
      with logical_device(self.second_device):
        loss = tf.reduce_mean((self.second(codes, training=True) - 1.0) ** 2)
    variables = self.optimizer.variables_updated
    self.optimizer.apply(tape.gradient(loss, variables), variables)
    return {"loss": loss}


def split(strategy: str = "mirrored", logical_cpus: int = 4) -> Replicator:
  return Replicator(strategy, logical_cpus=logical_cpus, devices_per_replica=2)


def train(replicator: Replicator, step: Halves) -> tuple[list[float], dict[str, np.ndarray]]:
  """The mean loss of each step, and all variables after the last."""
  losses = [np.mean([o["loss"] for o in replicator.run(step, batch)]) for batch in BATCHES]
  values = {path: tf.convert_to_tensor(v).numpy() for path, v in variables_of(step).items()
            if "/keras_" not in path}
  for name in ("_momentums", "_velocities"):  # A vector for the variables of each device.
    slots = getattr(step.optimizer.keras_optimizer, name)
    values[name] = np.concatenate([without_padding(slot) for slot in slots])
  return losses, values


def without_padding(slot: tf.Variable) -> np.ndarray:
  return np.trim_zeros(slot.numpy(), "b")


@functools.cache
def unsplit() -> tuple[list[float], dict[str, np.ndarray]]:
  """The same in float64 on one device."""
  one = Replicator("one_device", logical_cpus=1)
  with one.scope():
    step = Halves(second_device=0)
  return train(one, step)


def cpu(device: str) -> int:
  return int(re.fullmatch(r".*/device:CPU:(\d+)", device)[1])


def cpus(variable: tf.Variable) -> list[int]:
  """The devices of its copies."""
  return [cpu(copy.device) for copy in variable.values]


def operations(replicator: Replicator, step, batch: np.ndarray) -> list[tf.Operation]:
  """Those of a step, in the order in which they are traced."""
  graphs = []
  def noted(batch):
    graphs.append(tf.compat.v1.get_default_graph())
    return step(batch)
  replicator.run(noted, batch)
  return graphs[0].get_operations()


# ---- Training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy, logical_cpus", SPLIT)
def test_a_network_split_in_two_trains_as_the_unsplit_one(float64, strategy, logical_cpus):
  replicas = split(strategy, logical_cpus)
  firsts = list(range(0, logical_cpus, 2))  # CPUs that are logical device 0.
  seconds = [i + 1 for i in firsts]
  assert replicas.num_replicas == len(firsts)
  with replicas.scope():
    step = Halves()
  nests_close(train(replicas, step), unsplit(), 1e-12, 1e-12)

  # Slots and averages live with their variables.
  owned = step.optimizer.variables_updated
  homes = [firsts] * 2 + [seconds] * 5
  assert [cpus(v.value) for v in owned] == homes
  assert [cpus(v.value) for v in step.optimizer.averages] == homes
  for slots in (step.optimizer.keras_optimizer._momentums,
                step.optimizer.keras_optimizer._velocities):
    assert [cpus(slot.value) for slot in slots] == [firsts, seconds]
    assert [sum(v.shape.num_elements() for v in half) for half in (owned[:2], owned[2:])] == [
        len(without_padding(slot)) for slot in slots]
  # Also those of which every replica keeps its own, of the two normalizations.
  assert [cpus(v.value) for v in step.second.non_trainable_variables] == [seconds] * 3

  # Operations are where their half is: forward, backward, and in the update of its variables.
  traced = operations(replicas, step, BATCHES[0])
  for half, home in (("first", firsts), ("second", seconds)):
    # Without those that have no device of their own: they go with the variable they read.
    of_half = [o for o in traced if o.device and re.search(rf"/{half}(_\d+)?/", o.name)]
    for direction in ("forward", "backward"):
      found = {cpu(o.device) for o in of_half
               if o.name.startswith("gradient_tape/") == (direction == "backward")}
      assert found == set(home), f"{direction} pass of the {half} half"
  updates = {cpu(o.device) for o in traced if o.type == "AssignSubVariableOp"}
  assert updates == {*firsts, *seconds}
  sums = [o for o in traced if o.type == "AddN"
          and all(x.op.name.startswith("gradient_tape/") for x in o.inputs)]
  assert len(sums) >= len(firsts)
  for operation in sums:
    assert {operation.device} == {x.device for x in operation.inputs}


def test_an_eager_step_trains_the_same_on_the_same_devices(float64, run_eagerly):
  replicas = split()
  with replicas.scope():
    step = Halves()
  run_eagerly()
  nests_close(train(replicas, step), unsplit(), 1e-12, 1e-12)

  def devices(x):
    with logical_device(1):
      y = x + 1.0
    return cpu((x + 1.0).device), cpu(y.device)
  assert replicas.run(devices, BATCHES[0]) == [(0, 1), (2, 3)]
  assert devices(tf.constant(0.0)) == (0, 1)  # Outside of steps: of the first replica.


# ---- Places -------------------------------------------------------------------------------------


def test_a_replica_of_three_devices():
  replicas = Replicator("mirrored", logical_cpus=6, devices_per_replica=3)
  with replicas.scope():
    places = []
    for i in range(3):
      with logical_device(i):
        places.append(tf.Variable(0.0))
    with logical_device(2), logical_device(1):  # The inner one counts.
      places.append(tf.Variable(0.0))
    with logical_device(2), replicas.strategy.extended.colocate_vars_with(places[0]):
      places.append(tf.Variable(0.0))
    places.append(tf.Variable(0.0))
  assert [cpus(v) for v in places] == [[0, 3], [1, 4], [2, 5], [1, 4], [0, 3], [0, 3]]


def test_collectives_on_every_logical_device():
  def step(x):
    with logical_device(1):
      on_second = replicator.all_sum(x + 1.0)
    return replicator.all_sum(x), on_second

  outputs = [[float(y[0]) for y in output] for output in split().run(step, np.array([1.0, 2.0]))]
  assert outputs == [[3.0, 5.0]] * 2


def test_loops_branches_and_functions_stay_on_their_device(float64):
  replicas = split("one_device", 2)

  def derivatives(x, index):
    with tf.GradientTape() as outer:
      outer.watch(x)
      with tf.GradientTape() as tape:
        tape.watch(x)
        with logical_device(index):
          y = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.sin(y)), [0, x])[1]
          y = tf.function(tf.cos, autograph=False)(y)
          y = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.exp(y), lambda: tf.tanh(y))
      first = tape.gradient(y, x)
    return first, outer.gradient(first, x)

  x = BATCHES[0]
  expected = Replicator("one_device").run(lambda x: derivatives(x, 0), x)
  step = lambda x: derivatives(x, 1)
  nests_close(replicas.run(step, x), expected, 1e-11, 1e-14)
  graph = operations(replicas, step, x)[0].graph
  inner = [o for f in graph._functions.values() for o in f.graph.get_operations()]
  found = {o.type: cpu(o.device) for o in inner if o.type in ("Sin", "Cos", "Exp", "Tanh")
           and "_grad/" not in o.name}
  assert found == {"Sin": 1, "Cos": 1, "Exp": 1, "Tanh": 1}


# ---- Errors -------------------------------------------------------------------------------------


def line_of(function) -> int:
  """The line of the first statement of a function."""
  return function.__code__.co_firstlineno + 1


def test_a_device_that_a_replica_does_not_have():
  replicas = split()
  for index in (-1, 2, 1.0, "1", None):
    def place(index=index):
      with logical_device(index):
        pass
    message = (f"logical_device({index!r}): must be a whole number, at least 0 and below "
               "Replicator.devices_per_replica = 2; raise that setting, or choose a smaller number")
    assert refusal(place) == message
    assert refusal(replicas.run, place).endswith(
        f"test_logical_devices.py:{line_of(place)}: {message}")
    with replicas.scope():
      assert refusal(place) == message
  assert "devices_per_replica = 1; raise that" in refusal(
      Replicator("mirrored", logical_cpus=2).run, place)


def test_replicas_that_cannot_be_split():
  for strategy in ("default", "central_storage", "multi_worker_mirrored", "parameter_server",
                   "tpu"):
    assert f"'mirrored' and 'one_device', not with '{strategy}'; use one of those, or 1" in (
        refusal(Replicator, strategy, logical_cpus=4, devices_per_replica=2))
  for count in (0, -1, 1.5, "2"):
    assert refusal(Replicator, "mirrored", logical_cpus=4, devices_per_replica=count) == (
        f"Replicator.devices_per_replica = {count!r}: must be a whole number of at least 1")
  for strategy, logical_cpus, found in (("mirrored", 3, 3), ("one_device", None, 1)):
    assert f"{found} devices cannot be divided into replicas of 2; set Replicator.logical_cpus" in (
        refusal(Replicator, strategy, logical_cpus=logical_cpus, devices_per_replica=2))
  assert "XLA compiles for one device, not for devices_per_replica = 2; change one" in refusal(
      Replicator, "one_device", logical_cpus=2, devices_per_replica=2, jit_compile=True)
