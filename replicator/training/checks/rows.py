"""Checks that the workers of a run do not train on the same rows."""

import itertools
from collections.abc import Iterator
from typing import Any

from replicator.strategies import agreement
from replicator.training.inputs.inputs import divides_itself
from replicator.training.inputs.pipeline import digest_of_batch
from replicator.training.run import Run


def rows_compared(run: Run, batches: Iterator[Any]) -> Iterator[Any]:
  """Returns the same batches; warns if an input function gives two workers the same rows.

  Compares the first two batches, and ignores functions that repeat one batch. All workers must
  call it.
  """
  replicator = run.replicator
  several = run.schedule.steps - run.step > run.schedule.steps_per_call
  if replicator.num_pipelines == 1 or not divides_itself(run.inputs) or not several:
    return batches
  run.doing("preparing the first batch")
  first = list(itertools.islice(batches, 2))
  digests = [*map(digest_of_batch, first)]
  if (agreement.is_shared(replicator.worker_id, replicator.num_pipelines, "".join(digests))
      and digests[0] != digests[1]):
    run.say(f"warning: {run.data()} gives several workers the same rows, so each row counts "
            "several times: return different rows for each context.input_pipeline_id, or use a "
            "function without arguments that returns global batches")
  return itertools.chain(first, batches)
