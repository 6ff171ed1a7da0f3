"""Optimizers whose state is divided over the replicas, against the undivided ones."""

from replicator import Replicator, microbatch, step_number, wrap_optimizer, wrap_optimizers
from replicator.step.replicated import copies_of
from replicator.step.shards import whole
from replicator.step.variables import variables_of
from replicator.training.checkpoints import store
from replicator.training.checkpoints.saver import Saver
from tests.programs.closeness import close
from tests.programs.processes import launched
from tests.programs.refusals import refusal
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import keras
import numpy as np
import pytest
import tensorflow as tf
import tree

OPTIMIZERS = {
    **small.OPTIMIZERS,
    "SGD": lambda: K.SGD(0.1),
    "AMSGrad": lambda: K.Adam(0.05, amsgrad=True),
    "Adagrad": lambda: K.Adagrad(0.1),
    "Adadelta": lambda: K.Adadelta(0.5),
    "Adamax": lambda: K.Adamax(0.05),
    "Lion": lambda: K.Lion(0.01, weight_decay=0.125),
    "Ftrl": lambda: K.Ftrl(0.1),
}


def mirrored(replicas: int) -> Replicator:
  return Replicator("mirrored", logical_cpus=replicas)


def state_of(holder) -> dict[str, np.ndarray]:
  """What a step holds as one replica alone would have it."""
  return {path: whole(v) if v.synchronization == tf.VariableSynchronization.ON_READ else v.numpy()
          for path, v in variables_of(holder).items()}


def all_close(actual, expected, rtol) -> None:
  tree.map_structure(lambda x, y: close(x, y, rtol), actual, expected)


def assert_same_training(make, replicas: int, steps: int, **options) -> None:
  """The variables at each step and the state after the last are those of one replica, to 1e-13."""
  expected, alone = small.train(Replicator("one_device"), make, steps, **options)
  actual, divided = small.train(mirrored(replicas), make, steps, sharded=True, **options)
  all_close(actual, expected, 1e-13)
  all_close(state_of(divided), state_of(alone), 1e-13)


# ---- The same training --------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_divided_optimizer_trains_as_on_one_replica(float64, name):
  assert_same_training(OPTIMIZERS[name], 2, 3, clip_norm=0.5, ema_decay=0.75, ema_start=1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replicas"), [
    *((name, 8) for name in OPTIMIZERS), *((next(iter(OPTIMIZERS)), n) for n in (1, 2, 4))])
def test_so_it_does_for_twenty_steps_on_any_number_of_replicas(float64, name, replicas):
  options = {"clip_norm": 0.5, "ema_decay": 0.75, "every": 2} if replicas > 1 else {}
  assert_same_training(OPTIMIZERS[name], replicas, 20, **options)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_so_it_does_in_several_processes(workers):
  done = launched([f"--workers={workers}"], "tests.programs.sharded_optimizers")
  assert done.stdout.count(f"checked {len(OPTIMIZERS)} optimizers on {workers} workers") == workers


def test_each_replica_keeps_a_part_alone():
  with mirrored(4).scope():
    variables = [keras.Variable(tf.ones([96, 4])), keras.Variable(tf.ones([128]))]
    wrapped = wrap_optimizer(K.Adam(0.1), variables, ema_decay=0.5, sharded=True)
  slots = [v for v in wrapped.keras_optimizer.variables if len(v.shape)]
  assert [tuple(v.shape) for v in slots] == [(96 + 32,)] * 2
  assert [tuple(v.shape) for v in wrapped.averages] == [(96,), (32,)]
  assert all(len(copies_of(v.value)) == 4 for v in [*slots, *wrapped.averages])


@pytest.mark.parametrize("excluded", ["offset", "kernel"])
def test_variables_left_out_of_the_decay_or_of_an_update_stay(float64, two, excluded):
  def make():
    optimizer = K.AdamW(0.125, weight_decay=0.25)
    optimizer.exclude_from_weight_decay(var_names=[excluded])
    return optimizer

  def trained(replicator, **options):
    with replicator.scope():
      variables = small.make_variables(keras.constraints.MaxNorm(1.0))
      wrapped = wrap_optimizer(make(), variables, ema_decay=0.5, **options)
    variables[2].trainable = False

    def step(batch, without):
      gradients = small.gradients_of(variables, batch, step_number())
      wrapped.apply([None if i == without else g for i, g in enumerate(gradients)])
      return tf.constant(0)

    steps = [lambda batch, without=without: step(batch, without) for without in (None, 1)]
    for number in (0, 1, 0):  # A slot that moved would show.
      replicator.run(steps[number], small.BATCH)
    return [v.numpy() for v in variables], state_of(wrapped)

  all_close(trained(two, sharded=True), trained(Replicator("one_device")), 1e-13)


def test_micro_batches_and_an_average_that_the_step_computes_with(float64):
  def trained(replicator, **options):
    with replicator.scope():
      variables = small.make_variables()
      wrapped = wrap_optimizer(K.Adam(0.125), variables, ema_decay=0.5, **options)

    def step(batch):
      def loss_of(part):
        with wrapped.averaged_weights():
          target = small.loss_of(variables, part, 0)
        return small.loss_of(variables, part, 0) * (1.0 + tf.stop_gradient(target))

      loss, gradients = microbatch(lambda part: wrapped.loss_and_gradients(loss_of, part), batch, 2)
      wrapped.apply(gradients)
      return loss

    for _ in range(3):
      losses = replicator.run(step, small.BATCH)
    with wrapped.averaged_weights():  # Between steps, too.
      averaged = [v.numpy() for v in variables]
    return np.mean(losses), averaged, [v.numpy() for v in variables], state_of(wrapped)

  # The product of two means is a mean over micro-batches and replicas of another kind.
  expected = trained(mirrored(2))
  all_close(trained(mirrored(2), sharded=True), expected, 1e-13)
  all_close(expected[1], [v for path, v in expected[3].items() if "averages" in path], 1e-15)


@pytest.mark.parametrize("options", [
    pytest.param({}, marks=pytest.mark.slow), {"clip_norm": 1e3}, {"every": 2}])
def test_an_update_that_is_not_finite_is_skipped_on_all_replicas(float64, options):
  def trained(replicator, **more):
    variables, wrapped, nonfinite = small.train_with_bad_examples(
        replicator, skip_nonfinite=True, **options, **more)
    return nonfinite, [v.numpy() for v in variables], state_of(wrapped)

  all_close(trained(mirrored(4), sharded=True), trained(Replicator("one_device")), 1e-13)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_in_mixed_precision(policy, two):
  keras.config.set_dtype_policy(policy)

  def trained(replicator, **options):
    keras.utils.set_random_seed(0)
    with replicator.scope():
      network = keras.Sequential([keras.Input([3]), keras.layers.Dense(5), keras.layers.Dense(2)])
      optimizers = wrap_optimizers("adam", {"network": options}, network=network)

    def step(batch):
      loss = lambda: tf.reduce_mean(tf.square(tf.cast(network(batch["x"]), tf.float32)))
      return optimizers["network"].minimize(loss)

    for _ in range(3):
      replicator.run(step, {name: v.astype(np.float32) for name, v in small.BATCH.items()})
    return [v.numpy() for v in network.variables], state_of(optimizers["network"])

  all_close(trained(two, sharded=True), trained(mirrored(2)), 1e-6)


def test_line_by_line_and_compiled_by_xla(float64, run_eagerly):
  expected, _ = small.train(Replicator("one_device"), lambda: K.Adam(0.1), 3)
  compiled = Replicator("mirrored", logical_cpus=2, jit_compile=True)
  all_close(small.train(compiled, lambda: K.Adam(0.1), 3, sharded=True)[0], expected, 1e-13)
  run_eagerly()
  all_close(small.train(mirrored(2), lambda: K.Adam(0.1), 3, sharded=True)[0], expected, 1e-13)


def test_on_several_devices_for_each_replica(float64):
  def trained(replicator, **options):
    import replicator as library
    with replicator.scope():
      variables = small.make_variables()[:2]
      with library.logical_device(replicator.devices - 1):
        variables += small.make_variables()[2:]
      wrapped = wrap_optimizer(K.Adam(0.1), variables, ema_decay=0.5, **options)
    for _ in range(2):
      replicator.run(lambda batch: wrapped.apply(
          small.gradients_of(variables, batch, 0)) or tf.constant(0), small.BATCH)
    return [v.numpy() for v in variables], [
        whole(v.value) if options else v.numpy() for v in wrapped.averages]

  alone, split = Replicator("one_device"), Replicator(
      "mirrored", logical_cpus=4, devices_per_replica=2)
  alone.devices, split.devices = 1, 2
  all_close(trained(split, sharded=True), trained(alone), 1e-13)


# ---- Checkpoints --------------------------------------------------------------------------------


STRATEGIES = {"one": lambda: (Replicator("one_device"), {}),
              "two": lambda: (mirrored(2), {"sharded": True}),
              "four": lambda: (mirrored(4), {"sharded": True})}


@pytest.mark.parametrize("saved, restored", [
    ("one", "two"), ("two", "one"), ("two", "four"), ("two", "two")])
def test_a_checkpoint_is_that_of_the_undivided_optimizer(float64, tmp_path, saved, restored):
  def made(name):
    holder, (replicator, options) = tf.Module(), STRATEGIES[name]()
    with replicator.scope():
      holder.weights = small.make_variables()
      # It begins with other numbers than 0, and has padding of them.
      holder.optimizer = wrap_optimizer(K.Adagrad(0.1), holder.weights, ema_decay=0.5, **options)
    step = lambda batch: (
        holder.optimizer.apply(small.gradients_of(holder.weights, batch, 0)) or tf.constant(0))
    return holder, lambda: replicator.run(step, small.BATCH)

  (first, run_first), (second, run_second) = made(saved), made(restored)
  run_first()
  saver = Saver(tmp_path, first)
  saver.save(1, {})
  saver.wait()
  if "one" not in (saved, restored):
    alone, run_alone = made("one")
    run_alone()
    all_close(store.read(tmp_path), state_of(alone), 1e-13)
  Saver(tmp_path, second).restore()
  run_first()
  run_second()
  all_close(state_of(second), state_of(first), 0 if saved == restored else 1e-13)


# ---- Refusals -----------------------------------------------------------------------------------


class Mine(K.SGD):
  """May do anything."""


@pytest.mark.parametrize("make", [
    lambda: K.Adafactor(0.1), lambda: K.Lamb(0.1), lambda: Mine(0.1)])
def test_an_optimizer_that_may_need_whole_variables_is_refused(make, two):
  with two.scope():
    said = refusal(wrap_optimizer, make(), small.make_variables(), sharded=True)
  assert "wrap_optimizer.sharded = True: " in said and "sharded = False" in said


def test_a_strategy_without_a_copy_for_each_replica_is_refused():
  with Replicator("central_storage", logical_cpus=2).scope():
    said = refusal(wrap_optimizer, K.SGD(0.1), small.make_variables(), sharded=True)
  assert "works with 'mirrored' and 'multi_worker_mirrored'" in said


def test_an_update_outside_of_a_step_is_refused(two):
  with two.scope():
    wrapped = wrap_optimizer(K.SGD(0.1), small.make_variables(), sharded=True)
  gradients = [tf.ones(w.shape) for w in small.WEIGHTS]
  assert "call it in a step, which train" in refusal(wrapped.apply, gradients)


def test_on_one_replica_nothing_is_divided():
  wrapped = wrap_optimizer(K.SGD(0.1), small.make_variables(), sharded=True)
  wrapped.apply([tf.zeros(w.shape) for w in small.WEIGHTS])
  close(wrapped.variables_updated[0].numpy(), small.WEIGHTS[0].astype(np.float32), 0)
