"""Takes a pipeline's rows from a data set of global batches."""

import contextlib
import re
from collections.abc import Iterator

from replicator.errors import UsageError
from replicator.training.inputs.inputs import InputContext, Nest

import tensorflow as tf
import tree

_WRONG_SIZE = "rows of the batch of the step"
_FOUND = re.compile(_WRONG_SIZE + r"\D*(\d+)\D*(\d+)")  # The step and its number of examples.

_DENSE = {"RaggedTensor": "add .map(...) with its to_tensor(), and pass the lengths too",
          "SparseTensor": "add .map(...) with tf.sparse.to_dense"}


def own_rows(dataset: tf.data.Dataset, context: InputContext, first_step: int) -> tf.data.Dataset:
  """Takes the pipeline's rows of the global batches from `first_step` on.

  Their shape is `[context.batch_size, ...]`. A step that makes several updates takes that many
  global batches, joined so that `split` separates them again. Raises a UsageError if the batches
  have the wrong size. If their size is not static, the iterator raises an error, which
  `sizes_refused` turns into a UsageError.
  """
  size, count = context.global_batch_size, context.batches
  shapes = _check(dataset, size)
  dataset = dataset.skip(first_step * count)
  is_static = all(shape.rank and shape[0] for shape in shapes)
  if not is_static or context.num_input_pipelines > 1:
    dataset = _rows(dataset, context, first_step, is_static)
  return dataset if count == 1 else dataset.batch(count, drop_remainder=True).map(_joined)


def _joined(batches: Nest) -> Nest:
  """Interleaves batches `[k, n, ...]` to `[n k, ...]`, so that part j of `split` is batch j."""
  def join(x: tf.Tensor) -> tf.Tensor:
    rows = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
    return tf.reshape(rows, [x.shape[0] * x.shape[1], *x.shape[2:]])
  return tree.map_structure(join, batches)


def _rows(dataset: tf.data.Dataset, context: InputContext, first_step: int, is_static: bool
          ) -> tf.data.Dataset:
  """Takes the pipeline's rows of each batch; checks sizes at run time unless `is_static`."""
  size, count = context.global_batch_size, context.batches
  own = size // context.num_input_pipelines
  first = context.input_pipeline_id * own

  def rows_of(x: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(x[first:first + own], tf.TensorShape([own]).concatenate(x.shape[1:]))

  @tf.autograph.experimental.do_not_convert
  def rows(number: tf.Tensor, batch: Nest) -> Nest:
    checks = [] if is_static else [
        tf.debugging.Assert(
            tf.shape(x)[0] == size, [_WRONG_SIZE, number // count + 1, tf.shape(x)[0]])
        for x in tree.flatten(batch)]
    with tf.control_dependencies(checks):  # Otherwise the error of `rows_of` may come first.
      return tree.map_structure(rows_of, batch)

  return dataset.enumerate(first_step * count).map(rows)


@contextlib.contextmanager
def sizes_refused(size: int) -> Iterator[None]:
  """Turns the error for a global batch without `size` examples into a UsageError."""
  try:
    yield
  except tf.errors.InvalidArgumentError as error:
    if not (found := _FOUND.search(str(error))):
      raise
    step, count = map(int, found.groups())
    remedy = (f"or train.global_batch_size = {count}" if step == 1 else
              f"or .batch({size}, drop_remainder=True)")
    raise UsageError(f"train: the batch of step {step} has {count} examples, but "
                     f"train.global_batch_size = {size}; write .repeat().batch({size}) where the "
                     f"data set is made, {remedy}") from None


def _check(dataset: tf.data.Dataset, size: int) -> list[tf.TensorShape]:
  """Returns the shapes of a data set's tensors.

  Raises a UsageError if they are not those of global batches.
  """
  shapes = [spec.shape for spec in specs_of(dataset, "the data set has")]
  sizes = {shape[0] for shape in shapes if shape.rank} - {None}
  if any(shape.rank == 0 for shape in shapes) or len(sizes) > 1:
    raise UsageError("train: the data set has single examples, with tensors of shape "
                     f"{', '.join(map(str, shapes))}; add .batch({size}, drop_remainder=True), "
                     "for train.global_batch_size")
  if sizes - {size}:
    found = sizes.pop()
    raise UsageError(f"train: the data set has batches of {found}, but train.global_batch_size = "
                     f"{size}; write .batch({size}, drop_remainder=True) where it is made, or "
                     f"train.global_batch_size = {found}")
  return shapes


def specs_of(dataset: tf.data.Dataset, makes: str) -> list[tf.TensorSpec]:
  """Returns the specs of a data set's tensors.

  Raises a UsageError that begins with `makes` if something is not a tensor.
  """
  specs = tree.flatten(dataset.element_spec)
  for spec in specs:
    if not isinstance(spec, tf.TensorSpec):
      kind = type(spec).__name__.removesuffix("Spec").removeprefix("None")
      how = _DENSE.get(kind, "convert it in a .map(...), or leave it out")
      what = "None" if kind == "Tensor" else f"a{'n' * (kind[0] in 'AEIOU')} {kind}"
      raise UsageError(f"train: {makes} {what} in its batches; a step takes tensors: {how}")
  return specs


def check_rows(dataset: tf.data.Dataset, size: int, makes: str, what: str) -> None:
  """Raises a UsageError, with the texts `makes` and `what`, unless batches have `size` rows."""
  for spec in specs_of(dataset, makes):
    if not spec.shape.rank or spec.shape[0] != size:
      raise UsageError(f"{makes} a tensor of shape {spec.shape}; its first axis must be {what}")
