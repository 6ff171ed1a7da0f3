"""Turns an example source into a data set: in training order, or each example once."""

import functools
from collections.abc import Callable

from replicator.errors import UsageError
from replicator.strategies.tracing import python_state
from replicator.training.inputs.global_batches import check_rows, specs_of
from replicator.training.inputs.inputs import (
  ExampleSource,
  InputContext,
  Nest,
  is_batched,
  variant,
)
from replicator.training.inputs.shuffle import shuffled

import tensorflow as tf

_AT_ONCE = 2  # Batches made in parallel: one starts while the other waits for its last examples.


def shuffled_batches(source: ExampleSource, context: InputContext, first_step: int
                     ) -> tf.data.Dataset:
  """Makes the pipeline's part `[context.batch_size, ...]` of the batches from `first_step` on.

  Raises a UsageError if a batched source makes batches of the wrong size, or a source draws from a
  generator of Python or NumPy.
  """
  own, whole = context.batch_size, context.examples

  def at(position: tf.Tensor) -> Nest:  # [] or [own]
    epoch, within = position // source.size, position % source.size
    seed = tf.fill(position.shape, tf.constant(context.seed, tf.int64))
    key = tf.cast(tf.stack([seed, epoch], -1), tf.uint32)
    return variant(source, shuffled(within, key, source.size), tf.stack([seed, position], -1))

  def example(i: tf.Tensor) -> Nest:
    return at(i // own * whole + context.input_pipeline_id * own + i % own)

  def batch(step: tf.Tensor) -> Nest:
    return at(step * whole + context.input_pipeline_id * own + tf.range(own, dtype=tf.int64))

  if is_batched(source):
    steps = tf.data.Dataset.range(first_step, tf.int64.max)
    return _batched(source, steps, batch, own)
  places = tf.data.Dataset.range(first_step * own, tf.int64.max)
  examples = _mapped(source, places, example, tf.data.AUTOTUNE)
  specs_of(examples, f"{type(source).__name__} makes")
  return examples.batch(own, drop_remainder=True)


def ordered_batches(source: ExampleSource, size: int) -> tf.data.Dataset:
  """Batches all examples of a source once, as made by `load`: `[n, ...]`, n up to `size`.

  Raises a UsageError like `shuffled_batches`.
  """
  if not is_batched(source):
    return _mapped(source, tf.data.Dataset.range(source.size), source.load,
                   tf.data.AUTOTUNE).batch(size)
  middle = source.size // size * size
  parts = [  # Each has static shapes.
      _batched(source, tf.data.Dataset.range(first, end).batch(each, drop_remainder=True),
               source.load, each)
      for first, end, each in ((0, middle, size), (middle, source.size, source.size - middle))
      if first < end]
  return functools.reduce(tf.data.Dataset.concatenate, parts)


def _batched(source: ExampleSource, dataset: tf.data.Dataset, make: Callable[[tf.Tensor], Nest],
             size: int) -> tf.data.Dataset:
  batches = _mapped(source, dataset, make, _AT_ONCE)
  check_rows(batches, size, f"{type(source).__name__}.batched = True, but it makes",
             f"the number of indices that it is called with, {size} here; remove the attribute if "
             "its methods take one index")
  return batches


def _mapped(source: ExampleSource, dataset: tf.data.Dataset, make: Callable[[tf.Tensor], Nest],
            at_once: int) -> tf.data.Dataset:
  """Maps a data set; raises a UsageError if `make` draws from a generator of Python or NumPy."""
  # AutoGraph would also convert NumPy functions in it, which takes twenty times as long.
  make = tf.autograph.experimental.do_not_convert(make)
  states = lambda: python_state.generators_of(getattr(source, "__dict__", {}))
  for _ in range(2):  # Other threads may draw, and layers draw their seeds when they are made.
    before, made, after = states(), dataset.map(make, at_once), states()
    if not (moved := python_state.changed(before, after)):
      return made
  raise UsageError(f"{type(source).__name__}: load or augmented draws from {moved[0]}, only once "
                   "for all examples, since TensorFlow compiles it; write augmented(index, seed), "
                   "and draw with tf.random.stateless_uniform(shape, seed) or similar")
