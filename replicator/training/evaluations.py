"""The evaluations of a run."""

from replicator.step import context
from replicator.strategies.distributed_evaluation import EvaluationShards, sharded
from replicator.training.evaluation import Evaluation
from replicator.training.journal import Journal
from replicator.training.run import Run

import tensorflow as tf


class Evaluations:
  """Evaluates the step of a run, on the chief or on all workers; `journal` logs what is found."""

  def __init__(self, run: Run, journal: Journal):
    self._run, self._journal = run, journal
    on_all = bool(getattr(run.evaluate, "on_all_workers", False))
    self._shards = EvaluationShards(run.replicator, on_all)
    self._evaluate = run.evaluate if run.is_chief or on_all else None

  def due(self) -> Evaluation | None:
    """What an evaluation finds, if it is due at this step, on a worker that evaluates.

    Raises a UsageError if it changes the step on some workers alone.
    """
    run = self._run
    if not (run.evaluate and run.schedule.evaluates_at(run.step)):
      return None
    with run.saver.changed_alike(f"evaluate at step {run.step}"):
      if self._evaluate is None:
        return None
      with (context.entered(tf.constant(run.step, tf.int64)), sharded(self._shards),
            self._journal.events(run.step)):
        found = self._evaluate(run.module)
      self._journal.evaluated(found)
      return found
