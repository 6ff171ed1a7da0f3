"""Population-based training: members train at the same time, and the poor ones copy the good ones.

Jaderberg et al. 2017 (arXiv:1711.09846). A generation trains each member for `sweep.interval`
steps, as a trial that resumes in its own folder. Then each member of the lowest quarter, and each
that failed, copies the checkpoint of a member of the top quarter, and goes on with that member's
bindings, perturbed. They are those of its next command: a copy brings none of its donor's.

What is drawn depends on the seed, the generation and the member. It is written, for the whole
generation, before anything is copied; and all is copied before a member of the generation starts.
So a sweep that is killed at any moment goes on as it would have.
"""

import dataclasses
import json
import math
import pathlib
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence

from replicator.atomic import to_disk, write_whole
from replicator.console.formatting import format_number
from replicator.errors import UsageError
from replicator.tools.sweeps import search, space, trials
from replicator.tools.sweeps.populations import lineage
from replicator.tools.sweeps.populations.lineage import Draw, Generation
from replicator.tools.sweeps.results import TrialResult, rank
from replicator.tools.sweeps.sweep_file import STEPS, SweepFile
from replicator.tools.sweeps.trials import DONE, Record

_SHARE = 4  # The lowest quarter copies the top quarter.
_RESAMPLED = 0.25  # The probability that a value is drawn from its space.
_FACTORS = (0.8, 1.2)


def following(file: SweepFile, generations: Sequence[Generation], scores: Sequence[float]
              ) -> list[Draw]:
  """The generation after `generations`, whose last one has ended with `scores`, by member.

  The score of a member that failed is nan. Without a finite score there is none: the list is empty.
  """
  last, count = generations[-1], len(scores)
  order = sorted(range(count), key=lambda i: rank(scores[i], file.goal))  # The best first.
  share = max(1, count // _SHARE)
  top = [i for i in order[:share] if not math.isnan(scores[i])]
  poor = {*order[-share:], *(i for i in order if math.isnan(scores[i]))}
  if not top:
    return []
  made = []
  for i, member in enumerate(last):
    draw = f"{file.search_seed}/{len(generations)}/{i + 1}"
    donor = top[int(random.Random(draw).random() * len(top))]
    made.append(Draw(_perturbed(file.space(), last[donor].bindings, draw), donor + 1)
                if i in poor else Draw(member.bindings))
  return made


def _perturbed(names: Mapping[str, space.Distribution], bindings: space.Point, draw: str
               ) -> space.Point:
  """The bindings with each value changed; a name that is added does not change those of others."""
  changed = {}
  for name, value in bindings.items():
    uniform = random.Random(f"{draw}/{name}").random
    if uniform() < _RESAMPLED:
      changed.update(next(search.draws({name: names[name]}, draw)))
    else:
      changed[name] = names[name].scaled(value, _FACTORS[uniform() < 0.5])
  return changed


class Population:
  """Gives the members of each generation one after another, as `Search` gives trials.

  Attributes:
    trials: `{id: Record}`, the members in their present generation, as if none had begun it.
    count: the number of members.
  """

  def __init__(self, file: SweepFile, results: Mapping[str, TrialResult], retry_failed: bool,
               folder: pathlib.Path, note: Callable[[str], None]):
    """Goes on with what the sweep's folder and the `results`, which stay up to date, record."""
    self._file, self._results, self._folder, self._note = file, results, folder, note
    self.count, self._interval = file.trials or 0, file.interval or 0
    digest = search.digest_of(file, file.metric, file.trials, file.interval, file.search_seed)
    self._ids = [f"member={number}_{digest}" for number in range(1, self.count + 1)]
    self._path = folder / f"population_{digest}.json"  # A folder may have those of several files.
    self._enter(self._recorded() or [[Draw(point) for point in search.points(file)]],
                retry_failed)

  def _recorded(self) -> list[Generation]:
    """The generations that were written; none before the second one begins."""
    if not self._path.exists():
      return []
    names = self._file.space()
    return [[Draw({name: given.recorded(member["bindings"][name])
                     for name, given in names.items()}, member["parent"]) for member in generation]
            for generation in json.loads(self._path.read_text())]

  def _enter(self, generations: list[Generation], retry_failed: bool) -> None:
    self._generations = generations
    self.trials = {trial.id: trial for trial in self._trials(generations)}
    self._left = [trial for trial in self.trials.values()
                  if not (self._has_entered(trial)
                          and self._results[trial.id].record.is_ended(retry_failed))]
    self._open = {trial.id for trial in self._left}  # With those that run now.

  def _trials(self, generations: Sequence[Generation]) -> Iterator[Record]:
    steps = len(generations) * self._interval
    params = [binding for binding in self._file.params if not STEPS.match(binding)]
    file = dataclasses.replace(self._file, params=[*params, f"train.steps = {steps}"])
    for i, (trial_id, member) in enumerate(zip(self._ids, generations[-1], strict=True)):
      trial = Record.make(file, member.bindings, self._folder, trial_id)
      copies = [f"{generation[i].parent} at step {number * self._interval}"
                for number, generation in enumerate(generations) if generation[i].parent]
      yield dataclasses.replace(trial, generation=len(generations),
                                parent=copies[-1] if copies else "")

  @property
  def _end(self) -> int:
    """The step at which the present generation ends."""
    return len(self._generations) * self._interval

  @property
  def stage(self) -> str:
    """Where the sweep is: `generation 2 of 4: `."""
    return f"generation {len(self._generations)} of {self._file.steps() // self._interval}: "

  def explained(self) -> Iterator[str]:
    """Lines on what follows the trials."""
    if (left := self._file.steps() - self._end) > 0:
      share = max(1, self.count // _SHARE)
      yield (f"\nthen, {left // self._interval} times: the {share} of the worst "
             f"{self._file.metric}, and those that failed, copy one of the {share} best and go on "
             f"with its bindings, perturbed; all train for {self._interval} steps more")

  def peek(self) -> Record | None:
    """The trial that `propose` would return now."""
    if self._left:
      return self._left[0]
    generations = self._next_generations()
    return next(self._trials(generations)) if generations else None

  def propose(self) -> Record | None:
    """Returns the next trial to run; None if none is left, or some of its generation still run."""
    if generations := self._next_generations():
      write_whole(self._path, json.dumps(
          [list(map(dataclasses.asdict, each)) for each in generations], default=repr) + "\n")
      self._enter(generations, retry_failed=False)
    if not self._left:
      return None
    self._begin()
    return self._left.pop(0)

  def _next_generations(self) -> list[Generation]:
    """All generations with the next one; [] if there is none, or the present one still runs."""
    if self._open or self._end >= self._file.steps():
      return []
    made = following(self._file, self._generations, list(map(self._score, self._ids)))
    return [*self._generations, made] if made else []

  def _begin(self) -> None:
    """Copies the checkpoints of a generation, and records all members as in it, once."""
    waiting = [each for each in zip(self.trials.values(), self._generations[-1], strict=True)
               if len(self._generations) > 1 and not self._has_entered(each[0])]
    # The copies first: while there is one to make, the donors still are where they ended.
    for trial, member in sorted(waiting, key=lambda each: not each[1].parent):
      result = self._results[trial.id]
      if member.parent:
        self._copy(trial, member, result)
      result.record = trial.after(result.record)
      result.record.write(trials.folder_of(self._folder, trial.id))

  def _has_entered(self, trial: Record) -> bool:
    """Whether a member has a record of the present generation."""
    result = self._results.get(trial.id)
    return bool(result and result.record.generation == trial.generation)

  def _copy(self, trial: Record, member: Draw, own: TrialResult) -> None:
    donor = self._ids[member.parent - 1]
    begin = self._end - self._interval
    folder = trials.folder_of(self._folder, trial.id) / "checkpoints"
    new = folder.with_name(".checkpoints")
    for old in (new, folder):
      shutil.rmtree(old, ignore_errors=True)
    source = _checkpoint(self._folder, donor, begin)
    shutil.copytree(source, new / source.name)
    for path in new.rglob("*"):
      to_disk(path)
    new.rename(folder)
    mine = "failed" if own.record.status != DONE else format_number(own.at(begin))
    its = format_number(self._results[donor].at(begin))
    self._note(f"{trial.id} ({mine}) copies {donor} ({its}) at step {begin}, and goes on with "
               f"{trials.label(member.bindings)}")

  def _score(self, trial_id: str) -> float:
    """The metric of a member at the end of the generation; nan if it failed or is not finite.

    Raises a UsageError if it is done, and can neither be compared nor go on.
    """
    result, end = self._results[trial_id], self._end
    if result.record.status != DONE:
      return math.nan
    if end not in dict(result.series):
      raise UsageError(f"sweep.metric = '{self._file.metric}': {trial_id} has none at step {end}, "
                       "the end of a generation; EarlyStopping and sweep.interval do not go "
                       "together")
    if not math.isfinite(value := result.at(end)):
      return math.nan
    if not _checkpoint(self._folder, trial_id, end).exists():
      raise UsageError(f"sweep.population: {trial_id} has no checkpoint of step {end}; bind "
                       "train.checkpoint_every")
    return value

  def is_poor(self, result: TrialResult) -> bool:
    """Whether a running trial should be stopped: never."""
    return False

  def ended(self, result: TrialResult) -> None:
    """Counts a member that has ended; raises a UsageError if the sweep cannot go on with it."""
    self._open.discard(result.record.id)
    if result.series:  # Else the sweep says what its trials log.
      self._score(result.record.id)

  def draw(self) -> None:
    """Draws the lineage of the members into the sweep's folder."""
    series = [dict(self._results[i].series) if i in self._results else {} for i in self._ids]
    lineage.write(self._folder, self._file, self._generations, series)


def _checkpoint(folder: pathlib.Path, trial_id: str, step: int) -> pathlib.Path:
  """Where a run saves, see `replicator.training.checkpoints`, which loads TensorFlow."""
  return trials.folder_of(folder, trial_id) / "checkpoints" / f"step-{step:08d}"
