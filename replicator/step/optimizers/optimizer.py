"""Optimizers for replica steps: take the mean over the replicas, then clip, then update.

This is the only place where gradients are averaged. The loss of a step is the mean over its own
replica's examples, and a step never divides by the number of replicas.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.internals.keras_internals import exact_casts
from replicator.step import context, replicated, xla
from replicator.step.collectives import collectives
from replicator.step.hooks import Hook
from replicator.step.microbatch import has_examples, microbatch
from replicator.step.optimizers.flat_variables import FlatVariable, flatten, layout, update_copies
from replicator.step.optimizers.loss_scale import LossScale
from replicator.step.optimizers.moving_averages import MovingAverages

import keras
import tensorflow as tf
import tree


class Optimizer(tf.Module):
  """A Keras optimizer that owns some variables; made by `wrap_optimizer`.

  A step updates the variables in one of three ways, from the shortest to the most explicit:

      loss = optimizer.minimize(loss_fn, batch)

      loss, gradients = optimizer.loss_and_gradients(loss_fn, batch)
      optimizer.apply(gradients)

      with tf.GradientTape() as tape:
        loss = loss_fn(batch)
        scaled = optimizer.scale_loss(loss)
      optimizer.apply(tape.gradient(scaled, variables), variables)

  Attributes:
    variables_updated: the variables it owns.
    keras_optimizer: the wrapped optimizer, with its slots and `iterations`.
    layout: a hash of how its variables are laid out in its slots.
    averages: the moving average of each variable, or an empty list.
    nonfinite_updates: int64 [], the number of updates whose gradients had an infinity or NaN, or a
      norm that float32 does not hold. A step can return it to log it:
      `{"loss": loss, "nonfinite": optimizer.nonfinite_updates}`.
    loss_scale: the factor on losses under the precision 'mixed_float16', else None.
    calls: int64 [], the number of calls of `apply`, if not each makes an update, else None.
  """

  def __init__(self, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable],
               clip_norm: float | None, skip_nonfinite: bool, averages: MovingAverages | None,
               every: int = 1):
    super().__init__(name=optimizer.name)
    self.variables_updated = variables
    self.keras_optimizer = optimizer
    self._clip_norm = clip_norm
    half = keras.config.dtype_policy().name == "mixed_float16"
    self.loss_scale = LossScale() if half else None
    self.skip_nonfinite = skip_nonfinite or half
    self.nonfinite_updates = replicated.variable(0, tf.int64, "nonfinite_updates")
    self._every = every
    self.calls = replicated.variable(0, tf.int64, "calls") if every > 1 else None
    # Slots are made before the first step, because a replica cannot make variables.
    self._flats = flatten(optimizer, variables)
    self.layout = layout(self._flats)
    with exact_casts():
      optimizer.build([flat.seen_by_optimizer() for flat in self._flats])
    self._averages = averages
    self.averages = averages.values if averages else []

  @property
  def learning_rate(self) -> tf.Tensor:
    """The present learning rate, []; assign a number to change it, if it is no schedule."""
    return self.keras_optimizer.learning_rate

  @learning_rate.setter
  def learning_rate(self, rate: float) -> None:
    """Sets the learning rate; raises Keras' TypeError if it is a schedule."""
    self.keras_optimizer.learning_rate = rate

  def minimize(self, loss_fn: Callable, *batch: Any) -> Any:
    """Makes one update that reduces a loss: `loss_and_gradients` in micro-batches, then `apply`.

        loss, accuracy = optimizer.minimize(loss_fn, images, labels)

    The gin binding `microbatch.n = 4` divides the batch into four parts; see
    `replicator.microbatch`. Without it, without a batch, and in the function of an outer
    `microbatch` the loss is computed in one piece.

    Args:
      loss_fn: called with the arguments, or with a micro-batch of each; returns the loss, floating
        [], the mean over these examples; or a tuple or list that begins with the loss, and goes on
        with other means. In one piece, anything else may follow the loss.
      batch: the arguments: nests of tensors `[b, ...]`. Scalars, and what is no tensor, are passed
        on as they are.

    Returns:
      What `loss_fn` returned; in micro-batches, the mean of each tensor.

    Raises:
      UsageError: see `microbatch`, `loss_and_gradients` and `apply`.
    """
    compute = lambda part: self.loss_and_gradients(loss_fn, *part)
    is_divided = context.current().microbatch is None and any(
        has_examples(x) for x in tree.flatten(batch))
    outputs, gradients = microbatch(compute, batch) if is_divided else compute(batch)
    self.apply(gradients)
    return outputs

  def loss_and_gradients(self, loss_fn: Callable, *args: Any
                         ) -> tuple[Any, list[tf.Tensor | None]]:
    """Computes a loss and its gradients for the variables that the optimizer owns.

    Other variables, such as those of a network that the loss passes through, get no gradients. The
    loss is scaled as `scale_loss` does. `replicator.microbatch` shows how to accumulate gradients.

    Args:
      loss_fn: called with `args`; returns the loss, floating [], the mean over the replica's
        examples; or a tuple or list of the loss and anything else that the step needs.

    Returns:
      What `loss_fn` returned; and the gradients, in the order of the variables, to pass to `apply`.
      A gradient is None if the loss does not depend on its variable, or the variable is frozen.

    Raises:
      UsageError: the loss is not a floating scalar.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch([v.value for v in self.variables_updated if v.trainable])
      outputs = loss_fn(*args)
      loss = tf.convert_to_tensor(outputs[0] if isinstance(outputs, tuple | list) else outputs)
      if loss.shape.rank != 0 or not loss.dtype.is_floating:
        raise UsageError(f"{self.name}: the loss is {loss.dtype.name} {loss.shape}; return its "
                         "mean over the replica's examples, a floating scalar, or a tuple that "
                         "begins with it")
      scaled = self.scale_loss(loss)
    return outputs, tape.gradient(scaled, [v.value for v in self.variables_updated])

  def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
    """Scales a loss under the precision 'mixed_float16'; otherwise returns the loss itself.

    Call it inside the tape, once before each `apply`, and differentiate what it returns. Without
    it, small gradients of float16 layers would vanish; see `LossScale`.

    Args:
      loss: floating [].

    Returns:
      The loss, or under 'mixed_float16' the scaled loss, float32 [].
    """
    if self.loss_scale is None:
      return loss
    parts = context.num_replicas() * replicated.num_microbatches()
    context.current().kept[self] = parts  # Until the next update.
    return self.loss_scale.scale(loss, parts)

  def apply(self, gradients: Sequence[tf.Tensor | None],
            variables: Sequence[keras.Variable] | None = None) -> None:
    """Averages gradients over the replicas in one collective, clips, and updates the variables.

    Args:
      gradients: one for each variable, in the order of `wrap_optimizer`'s. A variable whose
        gradient is None stays as it is; so does a variable that is not `trainable` now, whose
        gradient may be left out.
      variables: the owned variables again, to show the reader which ones change. They are
        checked. Those that are not trainable now may be left out.

    Raises:
      UsageError: the variables are not the owned ones, the number of gradients does not match, or
        every gradient is None; or the loss was not scaled under 'mixed_float16'.
    """
    gradient_of = self._matched(list(gradients), variables)
    if not gradient_of:
      return
    flats = [flat for flat in self._flats if any(id(v) in gradient_of for v in flat.variables)]
    own = self._unscaled([flat.pack([gradient_of.get(id(v)) for v in flat.variables])
                          for flat in flats])
    averaged = collectives.all_mean(own)
    for hook in context.current().hooks:
      averaged = self._reported(hook, flats, averaged, gradient_of)
    with xla.alike():
      clipped, norm = _clipped(averaged, self._clip_norm)
      finite = tf.math.is_finite(norm)
      if self.loss_scale is not None:
        finite = tf.logical_and(finite, self.loss_scale.holds(averaged))
    context.measured(self, lambda: {"grad_norm": self._logged(norm, finite)})
    changing = [[id(v) in gradient_of for v in flat.variables] for flat in flats]
    # Each replica reads these two itself; a cross-replica function would send them from the first.
    iterations = tf.identity(self.keras_optimizer.iterations.value)
    with exact_casts():
      learning_rate = tf.identity(self.keras_optimizer.learning_rate)
    tf.distribute.get_replica_context().merge_call(
        self._update, args=(clipped, flats, changing, finite, iterations, learning_rate,
                            context.current().xla_in_parts))

  def _matched(self, gradients: list[tf.Tensor | None],
               variables: Sequence[keras.Variable] | None) -> dict[int, tf.Tensor]:
    """The gradients by the id of their variable, without None and those of frozen variables."""
    owned = self.variables_updated
    unfrozen = [v for v in owned if v.trainable]
    ids = lambda variables: [id(v) for v in variables]
    if variables is not None and ids(variables) not in (ids(owned), ids(unfrozen)):
      raise UsageError(f"{self.name}.apply: given other variables than the {len(owned)} it was "
                       "wrapped with; an optimizer owns its variables, in the order of "
                       "wrap_optimizer(optimizer, variables)")
    expected = unfrozen if len(gradients) == len(unfrozen) else owned
    if len(gradients) != len(expected):
      raise UsageError(f"{self.name}.apply: {len(gradients)} gradients for {len(expected)} "
                       "variables; only frozen variables need no gradient")
    pairs = [(g, v) for g, v in zip(gradients, expected, strict=True) if v.trainable]
    if pairs and all(g is None for g, _ in pairs):
      raise UsageError(f"{self.name}.apply: all {len(pairs)} gradients are None; the loss does not "
                       f"depend on {pairs[0][1].path} or the others, or it (or its scale_loss) was "
                       "computed outside the tape")
    return {id(v): tf.convert_to_tensor(g) for g, v in pairs if g is not None}

  def _unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    if self.loss_scale is None:
      return gradients
    kept = context.current().kept
    if self not in kept:
      raise UsageError(f"{self.name}.apply: under train.precision = 'mixed_float16' small "
                       "gradients vanish unless the loss is scaled; before each apply write, "
                       "inside the tape, scaled = optimizer.scale_loss(loss), and take "
                       "tape.gradient(scaled, variables)")
    # The next update may have another scale.
    return self.loss_scale.unscale(gradients, kept.pop(self))

  def _reported(self, hook: Hook, flats: list[FlatVariable], averaged: list[tf.Tensor],
                gradient_of: dict[int, tf.Tensor]) -> list[tf.Tensor]:
    """Reports an update to a hook; the averaged gradients to make it with."""
    updates = [(v, gradient_of[id(v)], mean) for flat, vector in zip(flats, averaged, strict=True)
               for v, mean in zip(flat.variables, flat.unpack(vector), strict=True)
               if id(v) in gradient_of]
    variables, local, means = map(list, zip(*updates, strict=True))
    used = hook.updating(self, variables, local, means)
    if used is means:
      return averaged
    used_of = {id(v): gradient for v, gradient in zip(variables, used, strict=True)}
    return [flat.pack([used_of.get(id(v)) for v in flat.variables]) for flat in flats]

  def _logged(self, norm: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
    """The norm [] of the averaged gradients, or 0 if the update is skipped."""
    norm = tf.cast(norm, keras.config.floatx())
    return tf.where(finite, norm, 0.0) if self.skip_nonfinite else norm

  def _update(self, strategy, gradients, flats, changing, finite, iterations, learning_rate,
              in_one_program):
    """Updates every replica's copies; a cross-replica function."""
    # All replicas computed it from the same averages, so one of the results is enough.
    all_finite = strategy.experimental_local_results(finite)[0]
    due = tf.constant(True)
    if self.calls is not None:
      self.calls.assign_add(1)
      due = self.calls % self._every == 0
    self.nonfinite_updates.assign_add(
        tf.cast(tf.logical_and(due, tf.logical_not(all_finite)), tf.int64))
    if self.loss_scale is not None:
      self.loss_scale.adapt(all_finite)
    made = xla.one_program if in_one_program else lambda update: update

    def update() -> None:
      # In place of Keras' `apply`, which would add up the gradients of the replicas again.
      for gradient, flat, changes in zip(gradients, flats, changing, strict=True):
        strategy.extended.update(
            flat.value, made(update_copies),
            args=([v.value for v in flat.variables], gradient, iterations, learning_rate),
            kwargs={"optimizer": self.keras_optimizer, "flat": flat, "changing": changes},
            group=False)
        for variable, changed in zip(flat.variables, changes, strict=True):
          if changed and variable.constraint is not None:
            variable.assign(variable.constraint(variable))
      # Keras reads the count and then assigns it; asynchronous workers would lose counts.
      self.keras_optimizer.iterations.value.assign_add(1)
      if self._averages:
        self._averages.update(strategy, self.keras_optimizer.iterations.value, made)

    if self.skip_nonfinite:
      tf.cond(tf.logical_and(due, all_finite), update, lambda: None)
    elif self.calls is not None:
      tf.cond(due, update, lambda: None)
    else:
      update()

  def saved_parts(self) -> dict[str, Any]:
    """The parts that a checkpoint saves. The updated variables belong to networks."""
    parts = {f"keras_{self.layout}": self.keras_optimizer, "averages": self.averages,
             "nonfinite_updates": self.nonfinite_updates, "loss_scale": self.loss_scale,
             "calls": self.calls}
    return {name: part for name, part in parts.items() if part is not None}

  def averaged_weights(self) -> contextlib.AbstractContextManager[None]:
    """A context in which networks compute with the moving averages of their weights.

    The weights themselves are not overwritten. An optimizer without `ema_decay` keeps no averages:
    the networks compute with their weights.
    """
    return self._averages.in_place_of_weights() if self._averages else contextlib.nullcontext()


def _clipped(gradients: list[tf.Tensor], clip_norm: float | None
             ) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Clips averaged gradients to a norm: `g min(1, clip_norm / |g|)` (Pascanu et al. 2013).

  |g| is the norm of all gradients together; a `clip_norm` of None clips nothing. Also returns |g|,
  float32 or float64 [], which is not finite if a gradient is not.
  """
  widest = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
  norm = tf.linalg.global_norm([tf.cast(gradient, widest) for gradient in gradients])
  if clip_norm is not None:
    gradients = [tf.clip_by_global_norm([gradient], clip_norm, tf.cast(norm, gradient.dtype))[0][0]
                 for gradient in gradients]
  return gradients, norm
