"""The input contract: the global batch of step s is the same however it is divided.

*A data set* is a `tf.data.Dataset` of global batches, as `keras.Model.fit` takes it: it repeats,
and its batches have `train.global_batch_size` examples. Process p of n reads whole global batches
of B, and takes the rows `[p * B / n, (p + 1) * B / n)`. A resumed run skips to its step, which
takes time, but is exact if the data set is deterministic, that is, if its shuffles have seeds. With
several processes it must be deterministic, or their rows would come from different batches.

Making a data set starts TensorFlow, after which logical CPUs and clusters can no longer be set up.
So make the `Replicator` first, or pass *a function without arguments* that returns the data set.
`train` calls it after it has made the strategy.

*An example source* has random access: `size` examples and `load(index)`. The library shuffles,
repeats, batches and divides them. Position p of the endless stream of examples is a pure function
of (seed, p), and step s takes positions `[s * B, (s + 1) * B)` for a global batch of B. So a
resumed run continues at its step, on any number of replicas, and nothing else is saved. A source
may also have `augmented(index, seed)`, which makes variants of an example. The seed is (seed of the
run, p), so variants are pure functions too. A source that is `batched` is called once per batch.
`digest()` identifies the examples, for instance by a hash of the names, sizes and labels of files:
a run does not resume with different examples. The result of `describe()`, such as the number of
classes, is printed at the beginning of a run, and that of `summary()`, such as the names of
classes, is kept in `run.json`.

*An input function* is called with an `InputContext` and returns a `tf.data.Dataset` of batches,
each the pipeline's part of a global batch, from step 0 on. Use it if a process should read only its
own part. A resumed run skips to its step, as with a data set.
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
  """A source of examples with random access."""

  size: int  # The number of distinct examples.

  def load(self, index: tf.Tensor) -> Nest:
    """Returns an example, a nest of tensors of static shape, for a scalar int64 in `[0, size)`.

    It is traced into a `tf.data` pipeline, so it uses only TensorFlow operations and no state.

    If the source has an attribute `batched = True`, it is called with int64 `[n]`, and returns
    tensors `[n, ...]`. The seeds of `augmented` are then int64 `[n, 2]`.
    """


@dataclasses.dataclass(frozen=True)
class InputContext:
  """The facts about a run that an input function needs (as in the Replicator RFC).

  Attributes:
    global_batch_size: the number of examples of one update, over all replicas.
    input_pipeline_id: the index of this pipeline; each worker has one.
    num_input_pipelines: the number of pipelines.
    num_replicas_in_sync: the number of replicas that run a step together.
    seed: the seed of the run, for shuffling.
    batches: the number of batches in one step, one for each update; see `settings.batches_of`.
  """

  global_batch_size: int
  input_pipeline_id: int = 0
  num_input_pipelines: int = 1
  num_replicas_in_sync: int = 1
  seed: int = 0
  batches: int = 1

  @property
  def examples(self) -> int:
    """The number of examples of one step, over all replicas."""
    return self.batches * self.global_batch_size

  @property
  def batch_size(self) -> int:
    """The number of examples of one step from this pipeline."""
    return self.examples // self.num_input_pipelines

  def get_per_replica_batch_size(self, global_batch_size: int) -> int:
    """Returns the number of examples per replica in one update.

    Raises a UsageError if they do not divide evenly.
    """
    replicas = self.num_replicas_in_sync
    if global_batch_size < 1 or global_batch_size % replicas:
      lower = max(1, global_batch_size // replicas) * replicas
      raise UsageError(f"train.global_batch_size = {global_batch_size}: does not divide "
                       f"evenly among the {replicas} replicas; use {lower} or {lower + replicas}")
    return global_batch_size // replicas


Inputs = (ExampleSource | tf.data.Dataset | Callable[[], tf.data.Dataset]
          | Callable[[InputContext], tf.data.Dataset])


def check(inputs: Any) -> None:
  """Raises a UsageError unless `inputs` are None or of a kind described above."""
  name = getattr(inputs, "__name__", type(inputs).__name__)
  if isinstance(inputs, type):
    raise UsageError(f"train: the inputs are the class {name}; pass an instance: {name}()")
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
  """Raises a UsageError unless the size of a source is a positive integer."""
  size = 0
  with contextlib.suppress(TypeError):
    size = operator.index(source.size)
  if size < 1:
    raise UsageError(f"{type(source).__name__}.size = {source.size!r}: must be the number of "
                     "examples, a whole number of at least 1")


def whole_batches(inputs: Any) -> tf.data.Dataset | None:
  """Returns the data set of global batches that inputs are or return; None for other inputs.

  Raises a UsageError if a function without arguments returns anything else.
  """
  if isinstance(inputs, tf.data.Dataset):
    return inputs
  is_function = callable(inputs) and not isinstance(inputs, ExampleSource)
  return made_by(inputs) if is_function and _takes(inputs) else None


def divides_itself(inputs: Any) -> bool:
  """Returns whether inputs are a function of an `InputContext` that returns a pipeline's rows."""
  return (callable(inputs) and not isinstance(inputs, ExampleSource | tf.data.Dataset)
          and not _takes(inputs))


def made_by(function: Callable[..., tf.data.Dataset], *arguments: InputContext) -> tf.data.Dataset:
  """Calls an input function; raises a UsageError if it does not return a data set."""
  dataset = function(*arguments)
  if not isinstance(dataset, tf.data.Dataset):
    raise UsageError("the input function must return a tf.data.Dataset of batches, not "
                     f"{type(dataset).__name__}")
  return dataset


def _takes(function: Callable, *arguments: Any) -> bool:
  """Returns whether a function can be called with these arguments."""
  try:
    # A decorator may supply some of the arguments that the wrapped function needs.
    inspect.signature(function, follow_wrapped=not arguments).bind(*arguments)
  except TypeError:
    return False
  except ValueError:  # It has no signature, so it gets a context.
    return bool(arguments)
  return True


def is_batched(source: ExampleSource) -> bool:
  """Returns whether a source makes the examples at several indices in one call."""
  return getattr(source, "batched", False)


def num_examples(inputs: Any) -> int | None:
  """Returns the number of distinct examples of an example source; None for other inputs."""
  return int(inputs.size) if isinstance(inputs, ExampleSource) else None


def digest_of(inputs: Any) -> str | None:
  """Returns the digest of the inputs' examples; None if they have none."""
  return inputs.digest() if hasattr(inputs, "digest") else None


def summary_of(inputs: Any) -> dict[str, Any]:
  """Returns the summary of the inputs' examples, which is JSON-able; empty if they have none."""
  return inputs.summary() if hasattr(inputs, "summary") else {}


def variant(source: ExampleSource, index: tf.Tensor, seed: tf.Tensor) -> Nest:
  """Makes the training example at `index`: `augmented` with a seed int64 [2], or else `load`ed.

  A batched source makes the examples at indices [n] with seeds [n, 2].
  """
  if hasattr(source, "augmented"):
    return source.augmented(index, seed)
  return source.load(index)
