"""Runs the evaluations of a run."""

from replicator.step import context
from replicator.strategies import one_replica
from replicator.strategies.distributed_evaluation import EvaluationShards, sharded
from replicator.training.evaluation import Evaluation
from replicator.training.journal import Journal
from replicator.training.run import Run

import tensorflow as tf


class Evaluations:
  """The evaluations of a run's step, on the chief or on all workers; `journal` logs the results."""

  def __init__(self, run: Run, journal: Journal):
    self._run, self._journal = run, journal
    on_all = bool(getattr(run.evaluate, "on_all_workers", False))
    self._shards = EvaluationShards(run.replicator, on_all)
    self._is_apart = run.replicator.num_workers > 1 and not on_all
    self._evaluate = run.evaluate if run.is_chief or on_all else None

  def due(self) -> Evaluation | None:
    """Evaluates the step if an evaluation is due; returns the result on workers that evaluate.

    Raises a UsageError if the evaluation changes the step on only some of the workers.
    """
    run = self._run
    if not (run.evaluate and run.schedule.evaluates_at(run.step)):
      return None
    with run.saver.changed_alike(f"evaluate at step {run.step}"):
      if self._evaluate is None:
        return None
      with (one_replica.apart(self._is_apart), sharded(self._shards),
            context.entered(tf.constant(run.step, tf.int64)), self._journal.events(run.step)):
        found = self._evaluate(run.module)
      self._journal.evaluated(found)
      return found
