"""Means over every example of a source, each counted once on any number of replicas."""

from collections.abc import Callable

import tensorflow as tf

from replicator.errors import UsageError
from replicator.step import context
from replicator.strategies.replicator import Replicator
from replicator.training.inputs import ExampleSource, Nest

Measure = Callable[[Nest], dict[str, tf.Tensor]]


class EveryExample:
  """Evaluates on a whole source, such as a validation set; for the `evaluate` of a training.

      self.validation = replicator.EveryExample(source)
      ...
      means = self.validation.mean(classifier.measure)   # {"top1": 0.76}

  The replicas of this process share each batch. Since all replicas get equally many examples, some
  of the last batch come twice, and then count once. If the workers are other processes, the chief
  evaluates alone.

  Args:
    source: the examples.
    batch_size: how many are measured at a time, over all replicas of this process; rounded up to a
      multiple of them.

  Raises:
    UsageError: the batch size is below 1.
  """

  def __init__(self, source: ExampleSource, batch_size: int = 256):
    if batch_size < 1:
      raise UsageError(f"EveryExample.batch_size = {batch_size}: must be at least 1")
    self.source = source
    self._batch_size = batch_size
    self._compiled: dict[Measure, Callable] = {}

  def mean(self, measure: Measure) -> dict[str, float]:
    """The mean over all examples of each number that `measure` returns, summed in float64.

    Args:
      measure: called on every replica with a batch; returns numbers or booleans `[n]` by name, one
        for each example, which must not depend on the others. It is compiled once.

    Raises:
      UsageError: it returns something else, or calls a collective, which would wait for workers
        that do not evaluate.
    """
    run = context.run.replicator
    replicas = 1 if run is None or run.is_async else run.num_local_replicas
    if measure not in self._compiled:
      self._compiled[measure] = _compiled(measure, run if replicas > 1 else None)
    totals: dict[str, float] = {}
    for batch, counts in self._batches(replicas):
      for sums in self._compiled[measure](batch, counts):
        for name, value in sums.items():
          totals[name] = totals.get(name, 0.0) + float(value)
    return {name: total / self.source.size for name, total in totals.items()}

  def _batches(self, replicas: int) -> tf.data.Dataset:
    """Batches `[b, ...]`, and how often each example counts in them: float64 `[b]`, 1 or 0."""
    size = self.source.size
    batch_size = -(-min(self._batch_size, size) // replicas) * replicas
    places = -(-size // batch_size) * batch_size

    @tf.autograph.experimental.do_not_convert
    def load(place: tf.Tensor) -> tuple[Nest, tf.Tensor]:
      return self.source.load(place % size), tf.cast(place < size, tf.float64)

    dataset = tf.data.Dataset.range(places).map(load, tf.data.AUTOTUNE, deterministic=True)
    options = tf.data.Options()
    options.autotune.enabled = False  # As in `replicator.training.inputs`: it may stall the end.
    return dataset.batch(batch_size, drop_remainder=True).with_options(options).prefetch(1)


def _compiled(measure: Measure, run: Replicator | None) -> Callable:
  """A function of a batch and its counts that returns the sums of each replica."""
  def sums(batch: Nest, counts: tf.Tensor) -> dict[str, tf.Tensor]:
    values = measure(batch)
    if calls := context.current().collectives:
      raise UsageError(f"EveryExample.mean: the measure calls the collective {calls[0]}, which "
                       "would wait for workers that do not evaluate; measure each example alone")
    return {name: _sum(name, value, counts) for name, value in values.items()}

  def on_replicas(batch: Nest, counts: tf.Tensor) -> dict[str, tf.Tensor]:
    step = tf.constant(0, tf.int64)
    if run is None:
      with context.entered(step):
        return sums(batch, counts)
    return run.on_replicas(sums, step, (batch, counts))

  if run is None:
    function = tf.function(on_replicas, autograph=False)
    return lambda batch, counts: [function(batch, counts)]
  function = run.compile(on_replicas)
  return lambda batch, counts: run.local_results(
      run.start(function, *run.distribute((batch, counts))))


def _sum(name: str, values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
  values = tf.convert_to_tensor(values)
  if values.shape != counts.shape:
    raise UsageError(f"EveryExample.mean: the measure '{name}' is {values.dtype.name} "
                     f"{values.shape}; return a number for each of the {counts.shape[0]} examples")
  return tf.reduce_sum(tf.where(counts > 0, tf.cast(values, tf.float64), 0.0))
