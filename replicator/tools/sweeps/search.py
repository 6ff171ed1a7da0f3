"""The trials of a sweep: those in its file, or those that Optuna proposes.

Ended trials are also stored in an Optuna study, which `optuna-dashboard` can open. A lost study is
rebuilt from the records of the trials.
"""

import datetime
import itertools
import pathlib
import zlib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from replicator.atomic import write_whole
from replicator.errors import UsageError
from replicator.tools.sweeps import space, trials
from replicator.tools.sweeps.results import TrialResult
from replicator.tools.sweeps.sweep_file import SweepFile
from replicator.tools.sweeps.trials import Record

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

JOURNAL = "optuna.log"  # The file in a sweep's folder that stores its study.
_TRIES = 10    # After so many proposals of known points, points are drawn at random.
_DRAWS = 1000  # After so many draws of known points, the space counts as fully searched.

optuna.logging.set_verbosity(optuna.logging.WARNING)


def points(file: SweepFile) -> list[space.Point]:
  """Returns all points of a sweep file without `optuna`: a product of dimensions, seeds last."""
  dimensions: list[list[space.Point]] = [[{name: value} for value in values]
                                         for name, values in file.grid.items()]
  if file.zip:
    dimensions.append([dict(zip(file.zip, row, strict=True))
                       for row in zip(*file.zip.values(), strict=True)])
  if drawn := file.random or file.population:
    random = {name: distribution for name, distribution in file.space().items() if name in drawn}
    dimensions.append(list(itertools.islice(draws(random, file.search_seed), file.trials)))
    if len(dimensions[-1]) < (file.trials or 0):
      key = "random" if file.random else "population"
      raise UsageError(f"sweep.trials = {file.trials}: sweep.{key} has only "
                       f"{len(dimensions[-1])} different points")
  if file.seeds:
    dimensions.append([{space.SEED: seed} for seed in file.seeds])
  return [dict(sorted(ChainMap(*parts).items())) for parts in itertools.product(*dimensions)]


def draws(distributions: Mapping[str, space.Distribution], *seed: int | str
          ) -> Iterator[space.Point]:
  """Draws distinct points until all seem to be drawn.

  Each name has its own sampler, so adding a name does not change the values of others.
  """
  study, trial = optuna.create_study(), optuna.trial.create_trial(state=TrialState.RUNNING)
  samplers = {name: optuna.samplers.RandomSampler(_hash(*seed, name)) for name in distributions}
  held = {name: given.in_optuna() for name, given in distributions.items()}
  drawn: set[str] = set()
  while True:
    for _ in range(_DRAWS):
      point = {name: given.value(samplers[name].sample_independent(study, trial, name, held[name]))
               for name, given in distributions.items()}
      if space.text_of(point) not in drawn:
        break
    else:
      return
    drawn.add(space.text_of(point))
    yield point


def _hash(*words: int | str) -> int:
  return zlib.crc32("/".join(map(str, words)).encode())


class Search:
  """The source of a sweep's trials, which also keeps its Optuna study.

  Attributes:
    trials: `{id: Record}`, all known trials, as if none had started.
    count: the total number of trials in the sweep.
  """

  stage = ""  # Only a population has stages.

  def __init__(self, file: SweepFile, results: Mapping[str, TrialResult], retry_failed: bool,
               folder: pathlib.Path, in_memory: bool = False):
    """Continues from the trials in `results`, which are in the order in which they started.

    The study is stored in a file in the sweep's folder, unless it is `in_memory`.

    Raises:
      UsageError: `sweep.random` has fewer points than `sweep.trials`.
    """
    self._file, self._space, self._folder = file, file.space(), folder
    self._distributions = {name: given.in_optuna() for name, given in self._space.items()}
    known = ([trial for trial in map(self._own, results.values()) if trial] if file.optuna else
             list(map(self._trial, points(file))))
    self.trials = {trial.id: trial for trial in known}
    self.count = max(file.trials or 0, len(known)) if file.optuna else len(known)
    ended = [trial_id for trial_id, result in results.items()
             if trial_id in self.trials and result.record.is_ended(retry_failed)]
    self._left = [trial for trial in known if trial.id not in ended]
    self._pruner = None if file.prune_after is None else optuna.pruners.MedianPruner(
        file.startup_trials, n_warmup_steps=file.prune_after)
    self._direction: Literal["minimize", "maximize"] = (
        "minimize" if file.goal == "min" else "maximize")
    self._study = optuna.create_study(  # A study has one space, one configuration, one metric.
        study_name=f"{file.metric} {digest_of(file)}",
        storage=None if in_memory else _storage(folder / JOURNAL), direction=self._direction,
        load_if_exists=True)
    self._held = {trial.user_attrs.get("id"): trial.state
                  for trial in self._study.get_trials(deepcopy=False)}
    for trial_id in ended:
      self.ended(results[trial_id])

  def _own(self, result: TrialResult) -> Record | None:
    """Returns the trial of a result; None if its space or its common settings differ."""
    record = result.record
    if record.bindings.keys() != self._space.keys():
      return None
    try:
      trial = self._trial({name: given.recorded(record.bindings[name])
                           for name, given in self._space.items()})
    except ValueError:
      return None
    return trial if trial.id == record.id else None

  def _trial(self, point: space.Point) -> Record:
    return Record.make(self._file, point, self._folder)

  def peek(self) -> Record | None:
    """Returns the trial that `propose` would return now."""
    if self._left:
      return self._left[0]
    return self.proposed() if len(self.trials) < self.count else None

  def propose(self) -> Record | None:
    """Returns the next trial to run; None if no trial is left."""
    trial = self.peek()
    if trial is None:
      self.count = len(self.trials)
    elif self._left:
      self._left.pop(0)
    else:
      self.trials[trial.id] = trial
    return trial

  def proposed(self) -> Record | None:
    """Returns a new trial proposed by Optuna; None if all points seem to have been tried.

    The number of known trials is part of the seed, so a resumed search makes the same proposals.
    """
    seed = self._file.search_seed, len(self.trials)
    sampler = optuna.samplers.TPESampler(n_startup_trials=self._file.startup_trials,
                                         seed=_hash(*seed))
    study = optuna.create_study(direction=self._direction, sampler=sampler)  # A scratch study.
    study.add_trials(self._study.get_trials(deepcopy=False))
    asked = (study.ask(self._distributions).params for _ in range(_TRIES))
    points = ({name: self._space[name].value(held) for name, held in params.items()}
              for params in asked)  # It may propose the same good point repeatedly.
    found = map(self._trial, itertools.chain(points, draws(self._space, *seed)))
    return next((trial for trial in found if trial.id not in self.trials), None)

  def explained(self) -> Iterator[str]:
    """Yields lines about the trials that are not known yet."""
    left = self.count - len(self.trials)
    if left and (example := self.proposed()):
      yield (f"\n{left} trials to be proposed by Optuna, each from the results of earlier ones. "
             f"One could be {example.id}:\n   {example.command}")

  def draw(self) -> None:
    """Does nothing: a search has no picture besides its page."""

  def is_poor(self, result: TrialResult) -> bool:
    """Returns whether a running trial should be pruned."""
    if self._pruner is None or not result.finite():
      return False
    return self._pruner.prune(self._study, optuna.trial.create_trial(
        state=TrialState.RUNNING, intermediate_values=result.finite()))

  def ended(self, result: TrialResult) -> None:
    """Adds an ended trial to the study."""
    record = result.record
    is_done = record.status == trials.DONE and bool(result.finite())
    state = (TrialState.COMPLETE if is_done else
             TrialState.PRUNED if record.status == trials.PRUNED else TrialState.FAIL)
    if self._held.get(record.id) == state:
      return
    self._held[record.id] = state
    bindings = self.trials[record.id].bindings
    trial = optuna.trial.create_trial(
        state=state, value=result.best() if is_done else None,
        params={name: space.held(value) for name, value in bindings.items()},
        distributions=self._distributions, user_attrs={"id": record.id},
        intermediate_values=result.finite())
    trial.datetime_start = datetime.datetime.now() - datetime.timedelta(seconds=record.seconds)
    self._study.add_trial(trial)


def digest_of(file: SweepFile, *others: Any) -> str:
  """Returns an eight-character hash of the trials' common settings, goal, space, and `others`."""
  names = file.space()
  choices = names[space.GIN_FILE].choices if space.GIN_FILE in names else []
  contents = [file.content(path) for each in choices for path in space.gin_files_of(each)]
  return trials.digest(file, file.goal, names, *contents, *others)


def _storage(journal: pathlib.Path) -> optuna.storages.JournalStorage:
  """Opens or creates a journal; removes the lock and the partial line of a killed sweep."""
  pathlib.Path(f"{journal}.lock").unlink(missing_ok=True)
  content = journal.read_bytes() if journal.exists() else b""
  if not content.endswith(b"\n"):
    write_whole(journal, content[:content.rfind(b"\n") + 1])
  return optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
