"""Optimizers for replica steps: take the mean over the replicas, then clip, then update.

    minimize                    the loss and its gradients g_r on the examples of replica r
      -> apply                  g = mean_r g_r in one collective;  g <- g min(1, clip_norm / |g|)
        -> replicated.update    on each replica, for its own copies of the variables:
            -> Keras' update by g;  average <- d average + (1 - d) variable

This is the only place where gradients are averaged. The loss of a step is the mean over its own
replica's examples, and a step never divides by the number of replicas.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.internals.keras_internals import optimizer_variables, rate_of
from replicator.step import context, replicated, xla
from replicator.step.hooks import Hook
from replicator.step.microbatch import has_examples, microbatch
from replicator.step.optimizers.communication import Communication, joined
from replicator.step.optimizers.copied_slots import CopiedSlots
from replicator.step.optimizers.flat_variables import FlatVariable, grouped, layout
from replicator.step.optimizers.gradients import clipped, matched
from replicator.step.optimizers.loss_scale import LossScale
from replicator.step.optimizers.moving_averages import MovingAverages
from replicator.step.optimizers.schedules import is_schedule, value_at
from replicator.step.optimizers.sharded_state import ShardedState
from replicator.step.optimizers.state import State, Update

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
    communication: how gradients travel between the replicas.
  """

  def __init__(self, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable],
               clip_norm: float | None, skip_nonfinite: bool, averages: MovingAverages | None,
               communication: Communication, every: int = 1, shards: int = 1):
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
    self._averages = averages
    self.averages = averages.values if averages else []
    groups = grouped(optimizer, variables)
    self.layout = layout(groups)
    self.communication = communication
    self._state = (
        State(optimizer, [FlatVariable(group) for group in groups], averages, communication)
        if shards == 1 else ShardedState(optimizer, groups, averages, communication, shards))
    self.copied_slots = CopiedSlots(optimizer, variables)

  @property
  def learning_rate(self) -> tf.Tensor:
    """The learning rate of this step, []; assign a number to change it, if it is no schedule.

    Outside of a step it is that of the next one.
    """
    rate = rate_of(self.keras_optimizer)
    if is_schedule(rate):
      return tf.cast(value_at(rate, context.step_number()), keras.config.floatx())
    return tf.convert_to_tensor(self.keras_optimizer.learning_rate)

  @learning_rate.setter
  def learning_rate(self, rate: float | tf.Tensor) -> None:
    """Sets the learning rate; raises a UsageError if it is a schedule, or would be one."""
    if callable(rate) or "learning_rate" not in optimizer_variables(self.keras_optimizer):
      raise UsageError(f"{self.name}.learning_rate: can only be set to a number, and only if there "
                       "is no schedule")
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
      UsageError: the loss is not a floating scalar, or `loss_fn` not a function.
    """
    if not callable(loss_fn):
      raise UsageError(f"{self.name}: the loss is a {type(loss_fn).__name__}; pass a function that "
                       "computes it, minimize(loss_fn, batch), or with a tape, call "
                       "apply(tape.gradient(scale_loss(loss), variables), variables)")
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch([v.value for v in self.variables_updated if v.trainable])
      outputs = loss_fn(*args)
      loss = tf.convert_to_tensor(outputs[0] if isinstance(outputs, tuple | list) else outputs)
      if loss.shape.rank != 0 or not loss.dtype.is_floating:
        raise UsageError(f"{self.name}: the loss is {loss.dtype.name} {loss.shape}; return its "
                         "mean over the replica's examples, a floating-point scalar, or a tuple "
                         "that starts with it")
      scaled = self.scale_loss(loss)
    return outputs, tape.gradient(scaled, [v.value for v in self.variables_updated])

  def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
    """Scales a loss, floating [], under the precision 'mixed_float16'; else returns it as it is.

    Call it inside the tape, once before each `apply`, and differentiate what it returns, which is
    float32. Without it, small gradients of float16 layers would vanish; see `LossScale`.
    """
    return loss if self.loss_scale is None else self.loss_scale.scale(loss)

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
    gradient_of = matched(self.name, self.variables_updated, list(gradients), variables)
    if not gradient_of:
      return
    context.current().updated.update(gradient_of)
    with self._state.exchanged():
      self._apply(gradient_of)

  def _apply(self, gradient_of: dict[int, tf.Tensor]) -> None:
    """Makes an update by the gradients of variables, by their ids."""
    state = self._state
    flats = [flat for flat in state.flats if any(id(v) in gradient_of for v in flat.variables)]
    local = [flat.pieces([gradient_of.get(id(v)) for v in flat.variables]) for flat in flats]
    averaged = state.mean(local)
    if self.loss_scale is not None:
      averaged = self.loss_scale.unscale(averaged, self.name)
    for hook in context.current().hooks:
      if type(hook).updating is Hook.updating:
        continue  # What is divided would be put together for nothing.
      averaged = self._reported(hook, flats, averaged, gradient_of)
    with xla.alike():
      final, norm = clipped(averaged, self._clip_norm, state.norm)
      finite = tf.math.is_finite(norm)
      if self.loss_scale is not None:
        finite = tf.logical_and(finite, self.loss_scale.holds(state.largest(averaged)))
      update = Update(flats, final, context.step_number(), self.learning_rate, gradient_of)
      state.update(update, self._is_due(finite))
    # The norm of an update that is skipped may be infinite or NaN.
    context.measured(self, lambda: {"grad_norm": tf.where(
        finite, norm, 0.0) if self.skip_nonfinite else norm})

  def _reported(self, hook: Hook, flats: list[FlatVariable], averaged: list[tf.Tensor],
                gradient_of: dict[int, tf.Tensor]) -> list[tf.Tensor]:
    """Reports an update to a hook; the averaged gradients to make it with."""
    whole = self._state.gathered(averaged)
    updates = [(v, gradient_of[id(v)], mean) for flat, vector in zip(flats, whole, strict=True)
               for v, mean in zip(flat.variables, flat.unpack(vector), strict=True)
               if id(v) in gradient_of]
    variables, local, means = map(list, zip(*updates, strict=True))
    used = hook.updating(self, variables, local, means)
    if used is means:
      return averaged
    used_of = {id(v): gradient for v, gradient in zip(variables, used, strict=True)}
    return self._state.scattered([joined(flat.pieces([used_of.get(id(v)) for v in flat.variables]))
                                  for flat in flats])

  def _is_due(self, finite: tf.Tensor) -> tf.Tensor | None:
    """Counts a call with `finite` gradients, bool []; whether to update, or None for always."""
    due, bad = None, tf.logical_not(finite)
    if self.calls is not None:
      replicated.update([self.calls], lambda copies: copies[0].assign_add(1))
      due = self.calls % self._every == 0
      bad = tf.logical_and(due, bad)
    replicated.update([self.nonfinite_updates],
                      lambda copies, bad: copies[0].assign_add(bad), tf.cast(bad, tf.int64))
    if self.loss_scale is not None:
      self.loss_scale.adapt(finite)
    if self.skip_nonfinite:
      due = finite if due is None else tf.logical_and(due, finite)
    return due

  def saved_parts(self) -> dict[str, Any]:
    """The parts that a checkpoint saves. The updated variables belong to networks."""
    parts = {f"keras_{self.layout}": self.keras_optimizer, "averages": self.averages,
             "nonfinite_updates": self.nonfinite_updates, "loss_scale": self.loss_scale,
             "calls": self.calls}
    return {name: part for name, part in parts.items() if part is not None}

  def averaged_weights(self) -> contextlib.AbstractContextManager[None]:
    """A context in which networks, compiled ones too, compute with the averages of their weights.

    Afterwards the weights are as before. Without `ema_decay` there are no averages, and networks
    compute with their weights. Raises a UsageError for graphs of `get_concrete_function` in a step.
    """
    return self._averages.in_place_of_weights() if self._averages else contextlib.nullcontext()
