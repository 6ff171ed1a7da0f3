"""Population-based training: members train in parallel, and poor ones copy good ones.

Jaderberg et al. 2017 (arXiv:1711.09846). A generation trains each member for `sweep.interval`
steps, as a trial that resumes in its own folder. Then each member in the bottom quarter, and each
that failed, copies the checkpoint of a member in the top quarter, and continues with that member's
bindings, perturbed. The bindings are in its next command, not in the copied checkpoint.

All draws depend only on the seed, the generation and the member. The draws for a whole generation
are written before any checkpoint is copied, and all checkpoints are copied before any member of the
generation starts. So a sweep killed at any moment continues as if nothing had happened.
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

_SHARE = 4  # The bottom quarter copies the top quarter.
_RESAMPLED = 0.25  # The probability that a value is drawn from its space.
_FACTORS = (0.8, 1.2)


def following(file: SweepFile, generations: Sequence[Generation], scores: Sequence[float]
              ) -> list[Draw]:
  """Draws the generation after `generations`, from the last one's `scores`, by member.

  The score of a failed member is nan. Returns an empty list if no score is finite.
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
  """Returns the bindings with all values changed; adding a name does not affect the others."""
  changed = {}
  for name, value in bindings.items():
    uniform = random.Random(f"{draw}/{name}").random
    if uniform() < _RESAMPLED:
      changed.update(next(search.draws({name: names[name]}, draw)))
    else:
      changed[name] = names[name].scaled(value, _FACTORS[uniform() < 0.5])
  return changed


class Population:
  """The source of each generation's members, with the methods of `Search`.

  Attributes:
    trials: `{id: Record}`, the members in the current generation, as if none had started it.
    count: the number of members.
  """

  def __init__(self, file: SweepFile, results: Mapping[str, TrialResult], retry_failed: bool,
               folder: pathlib.Path, note: Callable[[str], None]):
    """Continues from the records in the sweep's folder and in `results`, which stays up to date."""
    self._file, self._results, self._folder, self._note = file, results, folder, note
    self.count, self._interval = file.trials or 0, file.interval or 0
    digest = search.digest_of(file, file.metric, file.trials, file.interval, file.search_seed)
    self._ids = [f"member={number}_{digest}" for number in range(1, self.count + 1)]
    self._path = folder / f"population_{digest}.json"  # Several sweep files may share a folder.
    self._enter(self._recorded() or [[Draw(point) for point in search.points(file)]],
                retry_failed)

  def _recorded(self) -> list[Generation]:
    """Returns the generations on disk; none before the second one begins."""
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
    self._open = {trial.id for trial in self._left}  # Including those running now.

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
    """The step at which the current generation ends."""
    return len(self._generations) * self._interval

  @property
  def stage(self) -> str:
    """The progress of the sweep: `generation 2 of 4: `."""
    return f"generation {len(self._generations)} of {self._file.steps() // self._interval}: "

  def explained(self) -> Iterator[str]:
    """Yields lines about what follows the trials."""
    if (left := self._file.steps() - self._end) > 0:
      share = max(1, self.count // _SHARE)
      yield (f"\nthen, {left // self._interval} times: the {share} with the worst "
             f"{self._file.metric}, and those that failed, copy one of the best {share} and "
             f"continue with its bindings, perturbed; all train for {self._interval} more steps")

  def peek(self) -> Record | None:
    """Returns the trial that `propose` would return now."""
    if self._left:
      return self._left[0]
    generations = self._next_generations()
    return next(self._trials(generations)) if generations else None

  def propose(self) -> Record | None:
    """Returns the next trial; None if none is left, or the current generation is still running."""
    if generations := self._next_generations():
      write_whole(self._path, json.dumps(
          [list(map(dataclasses.asdict, each)) for each in generations], default=repr) + "\n")
      self._enter(generations, retry_failed=False)
    if not self._left:
      return None
    self._begin()
    return self._left.pop(0)

  def _next_generations(self) -> list[Generation]:
    """Returns all generations and the next; [] if there is none, or the current one is running."""
    if self._open or self._end >= self._file.steps():
      return []
    made = following(self._file, self._generations, list(map(self._score, self._ids)))
    return [*self._generations, made] if made else []

  def _begin(self) -> None:
    """Copies the checkpoints of a generation, and records that its members entered it, once."""
    waiting = [each for each in zip(self.trials.values(), self._generations[-1], strict=True)
               if len(self._generations) > 1 and not self._has_entered(each[0])]
    # Copies go first: until they are done, the donors must stay at the step where they ended.
    for trial, member in sorted(waiting, key=lambda each: not each[1].parent):
      result = self._results[trial.id]
      if member.parent:
        self._copy(trial, member, result)
      result.record = trial.after(result.record)
      result.record.write(trials.folder_of(self._folder, trial.id))

  def _has_entered(self, trial: Record) -> bool:
    """Returns whether a member has a record of the current generation."""
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
    self._note(f"{trial.id} ({mine}) copies {donor} ({its}) at step {begin}, and continues with "
               f"{trials.label(member.bindings)}")

  def _score(self, trial_id: str) -> float:
    """Returns a member's metric at the end of the generation; nan if it failed or is not finite.

    Raises a UsageError if it is done but lacks the metric or the checkpoint.
    """
    result, end = self._results[trial_id], self._end
    if result.record.status != DONE:
      return math.nan
    if end not in dict(result.series):
      raise UsageError(f"sweep.metric = '{self._file.metric}': {trial_id} has none at step {end}, "
                       "the end of a generation; EarlyStopping and sweep.interval cannot be "
                       "combined")
    if not math.isfinite(value := result.at(end)):
      return math.nan
    if not _checkpoint(self._folder, trial_id, end).exists():
      raise UsageError(f"sweep.population: {trial_id} has no checkpoint of step {end}; bind "
                       "train.checkpoint_every")
    return value

  def is_poor(self, result: TrialResult) -> bool:
    """Returns False: running members are never pruned."""
    return False

  def ended(self, result: TrialResult) -> None:
    """Marks a member as ended; raises a UsageError if the sweep cannot continue with it."""
    self._open.discard(result.record.id)
    if result.series:  # Otherwise, the sweep reports what its trials log.
      self._score(result.record.id)

  def draw(self) -> None:
    """Draws the lineage of the members to a file in the sweep's folder."""
    series = [dict(self._results[i].series) if i in self._results else {} for i in self._ids]
    lineage.write(self._folder, self._file, self._generations, series)


def _checkpoint(folder: pathlib.Path, trial_id: str, step: int) -> pathlib.Path:
  """Returns the path of a checkpoint; see `replicator.training.checkpoints` (loads TensorFlow)."""
  return trials.folder_of(folder, trial_id) / "checkpoints" / f"step-{step:08d}"
