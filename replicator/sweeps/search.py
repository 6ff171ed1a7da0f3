"""The trials of a sweep: at all points of its space, or where Optuna proposes them."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replicator.errors import UsageError
from replicator.sweeps import space, trials
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, ENDED, FAILED, PRUNED, Record, Trial

if TYPE_CHECKING:
  import optuna

Series = Sequence[tuple[int, float]]
_TRIES = 10    # Proposals of known points in a row, before a point is drawn at random.
_DRAWS = 1000  # Draws of known points in a row, before the space counts as searched.
_DRAWS_PER_POINT = 100  # The most draws for each point of `random`; equal draws count once.


def points(file: SweepFile) -> list[space.Point]:
  """All points of a sweep file without `optuna`: the product of its dimensions, seeds last."""
  dimensions: list[list[space.Point]] = [[{name: value} for value in values]
                                         for name, values in file.grid.items()]
  if file.zip:
    dimensions.append([dict(zip(file.zip, row, strict=True))
                       for row in zip(*file.zip.values(), strict=True)])
  if file.random:
    dimensions.append(_draw(file.random, file.trials or 0, file.search_seed))
  if file.seeds:
    dimensions.append([{space.SEED: seed} for seed in file.seeds])
  merged = [{name: value for part in parts for name, value in part.items()}
            for parts in itertools.product(*dimensions)]
  return [dict(sorted(point.items())) for point in merged]


def _draw(written: Mapping[str, Any], count: int, seed: int) -> list[space.Point]:
  """Draws `count` different points; the first ones stay the same for a larger `count`."""
  distributions = _distributions_of(written)
  different: dict[str, space.Point] = {}
  for index in range(_DRAWS_PER_POINT * count):
    # A source for each name: a name that is added later does not change the others.
    point = {name: distribution.draw(random.Random(f"{seed}/{name}/{index}"))
             for name, distribution in distributions.items()}
    different.setdefault(space.text_of(point), point)
    if len(different) == count:
      return list(different.values())
  raise UsageError(f"sweep.trials = {count}: sweep.random has only {len(different)} different "
                   "points")


def _distributions_of(written: Mapping[str, Any]) -> dict[str, space.Distribution]:
  return {name: space.Distribution.make(name, name, value)
          for name, value in sorted(written.items())}


class Listed:
  """The trials at all points of `grid`, `zip`, `random` and `seeds`, in order."""

  def __init__(self, file: SweepFile, records: Mapping[str, Record], retry_failed: bool):
    listed = [Trial.make(file, point) for point in points(file)]
    self.trials = {trial.id: trial for trial in listed}  # All trials that are known.
    self.count = len(self.trials)  # The number of trials that the sweep will have.
    self._missing = [trial for trial in self.trials.values()
                     if not is_ended(records.get(trial.id), retry_failed)]

  def propose(self) -> Trial | None:
    """Returns the next trial to run; None if no trial is left."""
    return self._missing.pop(0) if self._missing else None

  def probe(self) -> Trial | None:
    """Returns a trial that sets the same names as all that are left; None if no trial is left."""
    return self._missing[0] if self._missing else None

  def observe(self, trial_id: str, series: Series) -> bool:
    """Takes what a running trial has logged of the metric; returns whether to prune the trial."""
    return False

  def ended(self, record: Record, series: Series) -> None:
    """Takes the record and the metric of a trial that has ended."""


class Proposed:
  """The trials that Optuna proposes; it learns from the recorded trials of the same space."""

  def __init__(self, file: SweepFile, records: Mapping[str, Record], retry_failed: bool,
               series: Mapping[str, Series]):
    try:
      import optuna
    except ImportError as error:
      raise UsageError("sweep.optuna needs Optuna: pip install 'replicator[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    self._file = file
    self._space = _distributions_of(file.optuna)
    own = [record for record in records.values() if self._is_own(record)]
    own.sort(key=lambda record: record.order)
    ended = [record for record in own if is_ended(record, retry_failed)]
    self.count = max(file.trials or 0, len(own))
    self.trials = {record.id: Trial.make(file, record.bindings) for record in own}
    self._again = [self.trials[record.id] for record in own if record not in ended]
    # With the seed alone, a resumed search would propose its first points again.
    sampler = optuna.samplers.TPESampler(n_startup_trials=file.startup_trials,
                                         seed=file.search_seed + len(own))
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if file.prune_after is not None:
      pruner = optuna.pruners.MedianPruner(file.startup_trials, n_warmup_steps=file.prune_after)
    self._study = optuna.create_study(
      direction="minimize" if file.goal == "min" else "maximize", sampler=sampler, pruner=pruner)
    self._running: dict[str, optuna.trial.Trial] = {}
    self._seen: dict[str, int] = {}
    for record in ended:
      self._begin(record.bindings, record.id)
      self.observe(record.id, series[record.id])
      self.ended(record, series[record.id])

  def propose(self) -> Trial | None:
    """Returns the next trial to run; None if no trial is left."""
    if self._again:
      trial = self._again.pop(0)
      self._begin(trial.bindings, trial.id)
      return trial
    if len(self.trials) >= self.count:
      return None
    new = self._proposed() or self._drawn()
    if new is None:
      self.count = len(self.trials)
      return None
    self.trials[new.id] = new
    return new

  def _proposed(self) -> Trial | None:
    """Asks Optuna for a new point; it may propose a good point again and again."""
    from optuna.trial import TrialState
    for _ in range(_TRIES):
      asked = self._study.ask(self._distributions())
      trial = Trial.make(self._file, self._point(asked.params))
      if trial.id not in self.trials:
        self._running[trial.id] = asked
        return trial
      self._study.tell(asked, state=TrialState.FAIL)
    return None

  def _drawn(self) -> Trial | None:
    """Draws a new point; None if all points seem to have been tried."""
    source = random.Random(f"{self._file.search_seed}/{len(self.trials)}")
    for _ in range(_DRAWS):
      trial = Trial.make(self._file, {name: distribution.draw(source)
                                      for name, distribution in self._space.items()})
      if trial.id not in self.trials:
        self._begin(trial.bindings, trial.id)
        return trial
    return None

  def probe(self) -> Trial | None:
    """Returns a trial that sets the same names as all that are left; None if no trial is left."""
    if not self._again and len(self.trials) >= self.count:
      return None
    return Trial.make(self._file, {name: distribution.draw(random.Random(0))
                                   for name, distribution in self._space.items()})

  def observe(self, trial_id: str, series: Series) -> bool:
    """Takes what a running trial has logged of the metric; returns whether to prune the trial."""
    running = self._running[trial_id]
    for step, value in series[self._seen.get(trial_id, 0):]:
      if math.isfinite(value):
        running.report(value, step)
    self._seen[trial_id] = len(series)
    return bool(series) and running.should_prune()

  def ended(self, record: Record, series: Series) -> None:
    """Takes the record and the metric of a trial that has ended."""
    from optuna.trial import TrialState
    running = self._running.pop(record.id)
    value = trials.best_of(series, self._file.goal)
    if record.status == DONE and math.isfinite(value):
      self._study.tell(running, value)
    else:
      state = TrialState.PRUNED if record.status == PRUNED else TrialState.FAIL
      self._study.tell(running, state=state)

  def _is_own(self, record: Record) -> bool:
    return (sorted(record.bindings) == sorted(self._space)
            and Trial.make(self._file, record.bindings).id == record.id)

  def _begin(self, bindings: space.Point, trial_id: str) -> None:
    """Makes Optuna propose a known point."""
    self._study.enqueue_trial({name: self._coded(name, value)
                               for name, value in bindings.items()})
    self._running[trial_id] = self._study.ask(self._distributions())

  def _distributions(self) -> dict[str, "optuna.distributions.BaseDistribution"]:
    from optuna import distributions
    made: dict[str, distributions.BaseDistribution] = {}
    for name, given in self._space.items():
      if given.kind == "choice":  # By index: Optuna takes no lists as values.
        made[name] = distributions.CategoricalDistribution(range(len(given.choices)))
      elif given.kind == "int_uniform":
        made[name] = distributions.IntDistribution(int(given.low), int(given.high))
      else:
        made[name] = distributions.FloatDistribution(given.low, given.high,
                                                     log=given.kind == "log_uniform")
    return made

  def _point(self, params: Mapping[str, Any]) -> space.Point:
    def value(name: str, given: space.Distribution) -> Any:
      if given.kind == "choice":
        return given.choices[params[name]]
      return params[name] if given.kind == "int_uniform" else given.rounded(params[name])
    return {name: value(name, given) for name, given in self._space.items()}

  def _coded(self, name: str, value: Any) -> Any:
    given = self._space[name]
    if given.kind != "choice":
      return value
    return [space.text_of(choice) for choice in given.choices].index(space.text_of(value))


def is_ended(record: Record | None, retry_failed: bool) -> bool:
  """Whether a trial with this record does not run any more."""
  return record is not None and record.status in ENDED and not (
    record.status == FAILED and retry_failed)
