"""Optimizers for replica steps: mean over the replicas, then clip, then apply.

This is the one place where gradients are averaged. A step's loss is the mean over its own
replica's examples, and no step divides by the number of replicas.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from replicator.errors import UsageError
from replicator.optimizers.flat_variables import Flat, flatten, layout, update_copies
from replicator.optimizers.loss_scale import LossScale
from replicator.optimizers.moving_averages import MovingAverages
from replicator.optimizers.schedules import LinearDecay  # noqa: F401  # noqa: F401  (for gin)
from replicator.step import collectives, context
from replicator.step.variables import held_by

Networks = Sequence | Mapping[str, Sequence]  # A flat list, or one for each network by name.


class Optimizer(tf.Module):
  """A Keras optimizer that owns the variables of some networks; made by `wrap_optimizer`.

  Attributes:
    variables_updated: the variables it owns, network by network in the order of their names.
    keras_optimizer: the wrapped optimizer, with its slots and `iterations`.
    layout: a hash of which of its variables lie end to end in its slots, in which order.
    averages: the EMA of each variable, or an empty list.
    nonfinite_updates: int64 [], how many updates had gradients that were not finite. A step can
      return it, to have it logged: `{"loss": loss, "nonfinite": optimizer.nonfinite_updates}`.
    loss_scale: under the precision 'mixed_float16' the factor on losses, else None.
  """

  def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Networks,
               clip_norm: float | None, clip_each_network: bool, ema_decay: float | None,
               ema_start: int, ema_every: int, skip_nonfinite: bool):
    super().__init__(name=optimizer.name)
    _refuse_what_breaks_replication(optimizer)
    self._networks = _by_network(variables)
    self.variables_updated = [v for owned in self._networks.values() for v in owned]
    self._check_owned()
    if clip_each_network and (clip_norm is None or not isinstance(variables, Mapping)):
      raise UsageError(f"wrap_optimizer({optimizer.name}): clip_each_network needs a clip_norm, "
                       "and variables in a dict of networks, {'generator': [...], 'encoder': "
                       "[...]}")
    self.keras_optimizer = optimizer
    self.clip_norm = clip_norm
    self.clip_each_network = clip_each_network
    half = keras.config.dtype_policy().name == "mixed_float16"
    self.loss_scale = LossScale() if half else None
    self.skip_nonfinite = skip_nonfinite or half
    self.nonfinite_updates = keras.Variable(
        0, dtype="int64", trainable=False, name="nonfinite_updates",
        aggregation="only_first_replica")
    # Slots exist before the first step: inside a replica they could not be created.
    self._flats = flatten(optimizer, list(self._networks.values()))
    self.layout = layout(self._flats)
    optimizer.build([flat.seen_by_optimizer() for flat in self._flats])
    self._averages = (None if ema_decay is None else
                      MovingAverages(self.variables_updated, ema_decay, ema_start, ema_every))
    self.averages = self._averages.values if self._averages else []

  def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
    """What to differentiate in place of `loss` ([], floating): the loss itself, except in float16.

    To be called inside the tape, before each `apply`:

        with tf.GradientTape() as tape:
          loss = ...
          scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, variables), variables)

    Under the precision 'mixed_float16' gradients would vanish without it; see `LossScale`.
    """
    if self.loss_scale is None:
      return loss
    context.current().scaled_for.add(self)
    return self.loss_scale.scale(loss)

  def apply(self, gradients: Networks, variables: Networks | None = None) -> None:
    """Averages the gradients over replicas in one collective, clips, and updates the variables.

    Args:
      gradients: one for each variable, in the nest of `wrap_optimizer`'s variables. `None` leaves
        its variable alone; so does a variable that is no longer `trainable`.
      variables: the owned variables again, for the reader; checked when given. Those that
        are no longer trainable may be left out.

    Raises:
      UsageError: other variables than the owned ones, or not a single gradient; or under the
        precision 'mixed_float16' a loss that was not scaled.
    """
    gradient_of = self._gradients(gradients, variables)
    if not gradient_of:
      return
    flats = [flat for flat in self._flats if any(id(v) in gradient_of for v in flat.variables)]
    own = self._unscaled([flat.pack([gradient_of.get(id(v)) for v in flat.variables])
                          for flat in flats])
    averaged = collectives.all_mean(own)
    if on_update := context.current().on_update:
      self._report(on_update, flats, averaged, gradient_of)
    clipped, finite = self._clipped(averaged, flats)
    context.signal(self, lambda: self._norms(averaged, flats, finite))
    changing = [[id(v) in gradient_of for v in flat.variables] for flat in flats]
    # Read on each replica: from across replicas they would be sent from the first to the others.
    iterations = tf.identity(self.keras_optimizer.iterations.value)
    learning_rate = tf.identity(self.keras_optimizer.learning_rate)
    tf.distribute.get_replica_context().merge_call(
        self._update, args=(clipped, flats, changing, finite, iterations, learning_rate))

  def _check_owned(self):
    where = f"wrap_optimizer({self.name})"
    if not all(self._networks.values()):
      raise UsageError(f"{where}: no variables; pass the trainable_variables of a network that is "
                       "already built")
    for variable in self.variables_updated:
      if not isinstance(variable, keras.Variable):
        raise UsageError(f"{where}: {getattr(variable, 'name', variable)!r} is a "
                         f"{type(variable).__name__}; make it a keras.Variable")
      if sum(v is variable for v in self.variables_updated) > 1:
        raise UsageError(f"{where}: the variable '{variable.path}' is given twice; list it once")

  def _gradients(self, gradients: Networks, variables: Networks | None) -> dict[int, tf.Tensor]:
    """The gradients by the id of the variable that they update; none if all are frozen."""
    given = _by_network(gradients)
    expected = self._networks if variables is None else _by_network(variables)
    unfrozen = {name: [v for v in owned if v.trainable] for name, owned in self._networks.items()}
    if _ids(expected) not in (_ids(self._networks), _ids(unfrozen)):
      raise UsageError(f"{self.name}.apply: given other variables than the "
                       f"{_count(self._networks)} it was wrapped with; an optimizer owns "
                       "its variables, in the order of wrap_optimizer(optimizer, variables)")
    if _count(given) != _count(expected):
      raise UsageError(f"{self.name}.apply: {_count(given)} gradients for {_count(expected)} "
                       "variables; of frozen ones there need be none if you pass the others too")
    pairs = [(g, v) for name in given for g, v in zip(given[name], expected[name], strict=True)
             if v.trainable]
    if pairs and all(g is None for g, _ in pairs):
      raise UsageError(f"{self.name}.apply: all {len(pairs)} gradients are None; the loss "
                       f"does not depend on {pairs[0][1].path} or the others, or it (or its "
                       "scale_loss) was computed outside the tape")
    return {id(v): tf.convert_to_tensor(g) for g, v in pairs if g is not None}

  def _unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    if self.loss_scale is None:
      return gradients
    scaled_for = context.current().scaled_for
    if self not in scaled_for:
      raise UsageError(f"{self.name}.apply: under train.precision = 'mixed_float16' small "
                       "gradients vanish unless the loss is scaled; before each apply write, "
                       "inside the tape, scaled = optimizer.scale_loss(loss), and take "
                       "tape.gradient(scaled, variables)")
    scaled_for.remove(self)  # The next update may have another scale.
    return self.loss_scale.unscale(gradients)

  def _report(self, on_update: Callable, flats: list[Flat], averaged: list[tf.Tensor],
              gradient_of: dict[int, tf.Tensor]) -> None:
    updates = [(v, gradient_of[id(v)], mean) for flat, vector in zip(flats, averaged, strict=True)
               for v, mean in zip(flat.variables, flat.unpack(vector), strict=True)
               if id(v) in gradient_of]
    on_update(self, *map(list, zip(*updates, strict=True)))

  def _clipped(self, gradients: list[tf.Tensor], flats: list[Flat]
               ) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The averaged gradients, clipped; and whether all are finite, bool []."""
    if self.clip_norm is None:
      return gradients, _all_finite(gradients)
    if not self.clip_each_network:
      clipped, norm = tf.clip_by_global_norm(gradients, self.clip_norm)
      return clipped, tf.math.is_finite(norm)
    clipped, norms = list(gradients), []
    for owned in self._networks.values():
      places = _places(flats, owned)
      if places:
        of_network, norm = tf.clip_by_global_norm([gradients[i] for i in places], self.clip_norm)
        for i, gradient in zip(places, of_network, strict=True):
          clipped[i] = gradient
        norms.append(norm)
    return clipped, _all_finite(norms)

  def _norms(self, gradients: list[tf.Tensor], flats: list[Flat], finite: tf.Tensor
             ) -> dict[str, tf.Tensor]:
    """The norm of each network's averaged gradients; 0 where the update is skipped."""
    norms = {}
    for name, owned in self._networks.items():
      squares = [tf.cast(tf.nn.l2_loss(gradients[i]), keras.config.floatx())
                 for i in _places(flats, owned)]
      if squares:
        norm = tf.sqrt(2.0 * tf.add_n(squares))
        norms[name] = tf.where(finite, norm, 0.0) if self.skip_nonfinite else norm
    return norms

  def _update(self, strategy, gradients, flats, changing, finite, iterations, learning_rate):
    """Updates every replica's copy, seen from across replicas."""
    strategy.extended.update(
        self.nonfinite_updates.value,
        lambda copy, finite: copy.assign_add(tf.cast(tf.logical_not(finite), tf.int64)),
        args=(finite,), group=False)
    # Found from what all replicas share: they agree on it without another collective.
    all_finite = strategy.experimental_local_results(finite)[0]
    if self.loss_scale is not None:
      self.loss_scale.adapt(all_finite)
    update = lambda: self._update_variables(strategy, gradients, flats, changing, iterations,
                                            learning_rate)
    if self.skip_nonfinite:
      tf.cond(all_finite, update, lambda: None)
    else:
      update()

  def _update_variables(self, strategy, gradients, flats, changing, iterations, learning_rate):
    """Keras' own `apply` would add the gradients up over replicas once more."""
    for gradient, flat, changes in zip(gradients, flats, changing, strict=True):
      strategy.extended.update(
          flat.value, update_copies,
          args=([v.value for v in flat.variables], gradient, iterations, learning_rate),
          kwargs={"optimizer": self.keras_optimizer, "flat": flat, "changing": changes},
          group=False)
      for variable, changed in zip(flat.variables, changes, strict=True):
        if changed and variable.constraint is not None:
          variable.assign(variable.constraint(variable))
    # Not Keras' own, which reads and then assigns: asynchronous workers would lose counts.
    self.keras_optimizer.iterations.value.assign_add(1)
    if self._averages:
      self._averages.update(strategy, self.keras_optimizer.iterations.value)

  def saved_parts(self) -> dict[str, Any]:
    """What a checkpoint saves; the variables that the optimizer updates belong to networks."""
    return {f"keras_{self.layout}": self.keras_optimizer, "averages": self.averages,
            "nonfinite_updates": self.nonfinite_updates, "loss_scale": self.loss_scale}

  @contextlib.contextmanager
  def averaged_weights(self) -> Iterator[None]:
    """Inside, networks compute with the EMA of their weights; nothing is overwritten.

    Raises:
      UsageError: the optimizer was wrapped without `ema_decay`.
    """
    if not self._averages:
      raise UsageError(f"{self.name} keeps no averages; set wrap_optimizer's ema_decay")
    with self._averages.in_place_of_weights():
      yield


@gin.configurable(module="replicator", denylist=["optimizer", "variables"])
def wrap_optimizer(optimizer: keras.optimizers.Optimizer, variables: Networks,
                   clip_norm: float | None = None, clip_each_network: bool = False,
                   ema_decay: float | None = None, ema_start: int = 0, ema_every: int = 1,
                   skip_nonfinite: bool = False) -> Optimizer:
  """Makes a Keras 3 optimizer right for replica steps.

  Args:
    optimizer: any Keras optimizer, with a constant or scheduled learning rate.
    variables: the trainable variables that it owns, in a list, or in a dict of lists, one for
      each network: `{"generator": [...], "encoder": [...]}`. The networks must be built.
    clip_norm: clip the averaged gradients to this norm, that of all of them together.
    clip_each_network: clip those of each network of the dict to it, by their own norm.
    ema_decay: also keep an exponential moving average of the variables with this decay.
    ema_start: until so many updates were made the average is a copy.
    ema_every: move the average once in so many updates; with `ema_decay` 0 it is a target network,
      copied from the online one that often.
    skip_nonfinite: make no update from averaged gradients of which one is infinite or NaN: all
      variables, slots, averages and `iterations` stay. They are counted in any case. Always
      so under the precision 'mixed_float16', where overflows tell how far a loss can be scaled.

  Returns:
    an `Optimizer`, whose `apply(gradients, variables)` a step calls.

  Raises:
    UsageError: no variables, or none of Keras, or one twice; `clip_each_network` without networks
      or norm; or a Keras option that would compute otherwise on two replicas than on one
      (`clipnorm`, `global_clipnorm`, `clipvalue`, `gradient_accumulation_steps`), or that has its
      equal here (`use_ema`, `loss_scale_factor`).
  """
  return Optimizer(optimizer, variables, clip_norm, clip_each_network, ema_decay, ema_start,
                   ema_every, skip_nonfinite)


def check_owners(step: Callable) -> None:
  """Checks that no variable of a step is updated by two of its optimizers.

  Raises:
    UsageError: one is; the message has the paths of attributes that lead to the optimizers.
  """
  owners: dict[int, str] = {}
  for path, optimizer in held_by(step, (Optimizer,)):
    for variable in optimizer.variables_updated:
      owner = owners.setdefault(id(variable), path)
      if owner != path:
        raise UsageError(f"the variable '{variable.path}' belongs to two optimizers of the step, "
                         f"'{owner}' and '{path}'; give it to one of their wrap_optimizer calls")


def _places(flats: list[Flat], owned: list) -> list[int]:
  """Which of the vectors are of the network that has the variables `owned`."""
  return [i for i, flat in enumerate(flats) if any(flat.variables[0] is v for v in owned)]


def _by_network(nest: Networks) -> dict[str, list]:
  """Lists by the name of their network, sorted; a flat one belongs to a network without a name."""
  if isinstance(nest, Mapping):
    return {name: list(nest[name]) for name in sorted(nest)}
  return {"": list(nest)}


def _ids(networks: dict[str, list]) -> dict[str, list[int]]:
  return {name: [id(v) for v in variables] for name, variables in networks.items()}


def _count(networks: dict[str, list]) -> int | dict[str, int]:
  counts = {name: len(values) for name, values in networks.items()}
  return counts.get("", counts)


def _all_finite(values: list[tf.Tensor]) -> tf.Tensor:
  """Whether no number of some tensors, nor their sum, is infinite or NaN: bool [].

  One operation a tensor, at a third of the time of a look at every number.
  """
  widest = tf.float64 if any(v.dtype == tf.float64 for v in values) else tf.float32
  return tf.math.is_finite(tf.add_n([tf.reduce_sum(tf.cast(v, widest)) for v in values]))


def _refuse_what_breaks_replication(optimizer: keras.optimizers.Optimizer) -> None:
  if optimizer.built:
    raise UsageError(f"{optimizer.name}: has variables already; make an optimizer for each network")
  if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
    raise UsageError(f"{optimizer.name}: loss scaling is part of wrap_optimizer, under "
                     "'mixed_float16'; wrap the inner optimizer")
  if type(optimizer)._backend_update_step is not keras.optimizers.Optimizer._backend_update_step:
    raise UsageError(f"{optimizer.name}: {type(optimizer).__name__} does more in an update than "
                     "one variable at a time; use another, such as Adam")
  remedies = {
      "clipnorm": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "global_clipnorm": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "clipvalue": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "gradient_accumulation_steps": "it fails on several replicas; use replicator.microbatch",
      "use_ema": "set wrap_optimizer's ema_decay",
      "loss_scale_factor": "loss scaling is part of wrap_optimizer, under 'mixed_float16'",
  }
  for option, remedy in remedies.items():
    if getattr(optimizer, option, None):
      raise UsageError(f"{optimizer.name}: the Keras option '{option}' does not go with "
                       f"replication; {remedy}")
