"""The input contract: the global batch of step s is the same however it is divided.

*A data set* is a `tf.data.Dataset` of global batches, as `keras.Model.fit` takes it: it repeats,
and its batches have `train.global_batch_size` examples. Process p of n reads all of a global batch
of B, and takes the rows `[p * B / n, (p + 1) * B / n)`. A resumed run skips to its step, which
takes time, but is exact if the data set is deterministic, that is, if its shuffles have seeds. With
several processes it must be: the rows would otherwise be those of different batches.

A data set starts TensorFlow, after which there can be no more logical CPUs, and no cluster. So make
the `Replicator` first, or give *a function without arguments* that returns the data set. `train`
calls it when the strategy is there.

*An example source* has random access: `size` examples and `load(index)`. The library shuffles,
repeats, batches and divides them. Position p of the endless stream of examples is a pure function
of (seed, p), and step s takes positions `[s * B, (s + 1) * B)` for a global batch of B. So a
resumed run continues at its step, on any number of replicas, and nothing else is saved. A source
may also have `augmented(index, seed)`, which makes variants of an example: the seed is (seed of the
run, p), so that the variant, too, is a pure function of them. A source that is `batched` is called
once for each batch. One that has `digest()` says what its examples are, for instance a hash of the
names and sizes of files and of their labels: a run that was saved with others is not resumed.

*An input function* is called with an `InputContext` and returns a `tf.data.Dataset` of batches,
each the pipeline's part of a global batch, from step 0 on: for a process that should read no more
than its own part. A resumed run skips to its step, as with a data set.
"""

import contextlib
import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from replicator.errors import UsageError

import tensorflow as tf

Nest = Any


@runtime_checkable
class ExampleSource(Protocol):
  """Examples with random access."""

  size: int  # The number of distinct examples.

  def load(self, index: tf.Tensor) -> Nest:
    """One example, a nest of tensors of static shape, for a scalar int64 in `[0, size)`.

    Traced into a `tf.data` pipeline: TensorFlow operations only, no state.

    If the source has an attribute `batched` that is True, the pipeline calls it with int64 `[n]`,
    and each tensor is `[n, ...]`. The seeds of `augmented` are int64 `[n, 2]` then.
    """


@dataclasses.dataclass(frozen=True)
class InputContext:
  """The facts about a run that an input function needs (as in the Replicator RFC).

  Attributes:
    global_batch_size: examples of one step over all replicas.
    input_pipeline_id: the number of this pipeline; each worker has one.
    num_input_pipelines: how many pipelines there are.
    num_replicas_in_sync: how many replicas make a step together.
    seed: the seed of the run, for shuffling.
  """

  global_batch_size: int
  input_pipeline_id: int = 0
  num_input_pipelines: int = 1
  num_replicas_in_sync: int = 1
  seed: int = 0

  @property
  def batch_size(self) -> int:
    """Examples of one step that this pipeline provides."""
    return self.global_batch_size // self.num_input_pipelines

  def get_per_replica_batch_size(self, global_batch_size: int) -> int:
    """Examples of one step that one replica sees; raises a UsageError if it does not divide."""
    replicas = self.num_replicas_in_sync
    if global_batch_size < 1 or global_batch_size % replicas:
      lower = max(1, global_batch_size // replicas) * replicas
      raise UsageError(f"train.global_batch_size = {global_batch_size}: does not divide by the "
                       f"{replicas} replicas; write {lower} or {lower + replicas}")
    return global_batch_size // replicas


Inputs = (ExampleSource | tf.data.Dataset | Callable[[], tf.data.Dataset]
          | Callable[[InputContext], tf.data.Dataset])


def check(inputs: Any) -> None:
  """Raises a UsageError unless `inputs` are None, or of a kind that the contract has."""
  name = getattr(inputs, "__name__", type(inputs).__name__)
  if isinstance(inputs, type):
    raise UsageError(f"train: the inputs are the class {name}; give an instance: {name}()")
  if isinstance(inputs, ExampleSource):
    check_size(inputs)
  elif callable(inputs) and not (_takes(inputs) or _takes(inputs, None)):
    raise UsageError(f"train: the input function {name} takes more than an InputContext; write "
                     f"def {name}() or def {name}(context)")
  elif not (inputs is None or callable(inputs) or isinstance(inputs, tf.data.Dataset)):
    raise UsageError(f"train: the inputs are a {name}; they must be a tf.data.Dataset of global "
                     "batches, a function that returns one, or an example source, with size and "
                     "load(index)")


def check_size(source: ExampleSource) -> None:
  """Raises a UsageError unless the size of a source is a number of examples."""
  size = 0
  with contextlib.suppress(TypeError):
    size = operator.index(source.size)
  if size < 1:
    raise UsageError(f"{type(source).__name__}.size = {source.size!r}: must be the number of "
                     "examples, a whole number of at least 1")


def whole_batches(inputs: Any) -> tf.data.Dataset | None:
  """The data set of global batches that some inputs are, or return; None if they are others.

  Raises a UsageError if a function without arguments returns anything else.
  """
  if isinstance(inputs, tf.data.Dataset):
    return inputs
  is_function = callable(inputs) and not isinstance(inputs, ExampleSource)
  return made_by(inputs) if is_function and _takes(inputs) else None


def divides_itself(inputs: Any) -> bool:
  """Whether inputs are a function of a context, which returns this pipeline's rows."""
  return (callable(inputs) and not isinstance(inputs, ExampleSource | tf.data.Dataset)
          and not _takes(inputs))


def made_by(function: Callable[..., tf.data.Dataset], *arguments: InputContext) -> tf.data.Dataset:
  """The data set that an input function returns; raises a UsageError if it is none."""
  dataset = function(*arguments)
  if not isinstance(dataset, tf.data.Dataset):
    raise UsageError("the input function must return a tf.data.Dataset of batches, not "
                     f"{type(dataset).__name__}")
  return dataset


def _takes(function: Callable, *arguments: Any) -> bool:
  """Whether a function can be called with these arguments."""
  try:
    # The function in a decorator says what it needs, and the decorator may give some of that.
    inspect.signature(function, follow_wrapped=not arguments).bind(*arguments)
  except TypeError:
    return False
  except ValueError:  # It does not say what it takes: it gets a context.
    return bool(arguments)
  return True


def is_batched(source: ExampleSource) -> bool:
  """Whether a source makes the examples at many indices in one call."""
  return getattr(source, "batched", False)


def num_examples(inputs: Any) -> int | None:
  """The number of distinct examples of some inputs; None if only a data set knows."""
  return int(inputs.size) if isinstance(inputs, ExampleSource) else None


def digest_of(inputs: Any) -> str | None:
  """The digest of the examples of some inputs; None if they have none."""
  return inputs.digest() if hasattr(inputs, "digest") else None


def variant(source: ExampleSource, index: tf.Tensor, seed: tf.Tensor) -> Nest:
  """The example at `index` as it is trained on: `augmented` for a seed int64 [2], or `load`ed.

  Of a source that is batched also the examples at indices [n], for seeds [n, 2].
  """
  if hasattr(source, "augmented"):
    return source.augmented(index, seed)
  return source.load(index)
