"""A sweep file: a gin file that binds only `sweep.NAME`.

The trials are the product of `grid`, `zip`, `random` and `seeds`, or Optuna proposes them from
`optuna`. The name `gin_file` stands for a gin file, or a list of gin files, that a trial adds to
the common ones. A string that starts with @ or % is a gin reference, such as `'@adam'`.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from replicator.configuration import annotations, checks, statements
from replicator.configuration.configurables import find
from replicator.configuration.differences import written_in
from replicator.console import gin_files
from replicator.errors import UsageError
from replicator.tools.sweeps.space import SEED, Distribution

import gin


@dataclasses.dataclass(frozen=True)
class SweepFile:
  """The contents of a sweep file.

  Attributes:
    grid: `{name: [values]}`; every combination is a trial.
    zip: `{name: [values]}` with lists of equal length; the i-th values go together.
    random: `{name: distribution}`, see `space.Distribution`; `trials` points are drawn.
    optuna: `{name: distribution}`; Optuna's TPE sampler proposes `trials` points.
    population: `{name: distribution}`; `trials` members train at the same time, and poor ones copy
      good ones, see `sweeps.populations`.
    interval: for `population`: the number of steps between copies.
    startup_trials: for `optuna`: the number of points drawn at random before the sampler uses
      earlier results, and the number of trials that must end before one can be pruned.
    prune_after: for `optuna`: after this training step, a trial is stopped if its best metric is
      worse than the median of the earlier trials at the same step; None disables pruning.
    gpus_per_trial: the number of GPUs reserved for each trial; 0 lets all trials share the GPUs,
      and None is 1 if there are GPUs.
  """

  experiment: str  # A module, such as `experiments.sngan`, or a file, such as `my_step.py`.
  metric: str  # The metric in `metrics.jsonl` by which trials are compared.
  goal: Literal["min", "max"] = "min"  # Whether low or high values of the metric are good.
  gin_files: Sequence[str] = ()  # Gin files for all trials, in order.
  params: Sequence[str] = ()  # Bindings for all trials; they override the files.
  grid: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  zip: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  random: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  optuna: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  population: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  trials: int | None = None  # The number of points of `random` or `optuna`, or of members.
  seeds: Sequence[int] = ()  # Values of `train.seed`; every point is tried with each.
  search_seed: int = 0  # The seed of `random`, `optuna` and `population`.
  startup_trials: int = 5
  prune_after: int | None = None
  interval: int | None = None
  gpus_per_trial: int | None = None
  slurm: Sequence[str] = ()  # Options for sbatch, such as '--partition=gpu'.

  def space(self) -> dict[str, Distribution]:
    """Returns the values of each name that differs between trials, sorted by name.

    Raises:
      UsageError: a name or its values are invalid.
    """
    owners = {binding.partition("=")[0].strip(): "params" for binding in self.params}
    seeds = {SEED: self.seeds} if self.seeds else {}
    made: dict[str, Distribution] = {}
    for key in ("grid", "zip", "random", "optuna", "population", "seeds"):
      for name, values in (seeds if key == "seeds" else getattr(self, key)).items():
        where = f"sweep.{key}: '{name}'"
        if not re.fullmatch(r"[\w./]+", name):
          raise UsageError(f"{where}: must be the name of a binding, such as 'train.steps'")
        if name in owners:
          raise UsageError(f"{where} is already in sweep.{owners[name]}")
        owners[name] = key
        make = Distribution.parse if key in _DRAWN else Distribution.listed
        made[name] = make(where, name, values)
    return dict(sorted(made.items()))

  def steps(self) -> int:
    """Returns the `train.steps` in `params`; 0 if it is not set there as a number."""
    return max((int(found[1]) for found in map(STEPS.match, self.params) if found), default=0)

  def gpus_of_trial(self, available: int) -> int:
    """Returns the number of GPUs reserved per trial, out of `available`; 0 if all are shared."""
    return min(1, available) if self.gpus_per_trial is None else self.gpus_per_trial

  @functools.cached_property
  def content(self) -> Callable[[str], list[str]]:
    """Function that returns the statements of a gin file, as of its first call for that file."""
    return functools.cache(written_in)

  def best(self) -> str:
    """Returns which value of the metric is best: 'lowest' or 'highest'."""
    return "lowest" if self.goal == "min" else "highest"


gin.external_configurable(SweepFile, name="sweep", module="replicator")
_DRAWN = ("random", "optuna", "population")  # Spaces of distributions.
_LEAST = {"interval": 1, "trials": 1, "search_seed": 0, "startup_trials": 1, "prune_after": 0,
          "gpus_per_trial": 0}
_FOR = {"trials": _DRAWN, "prune_after": ("optuna",), "interval": ("population",)}
STEPS = re.compile(r"\s*(?:replicator\.)?train\.steps\s*=\s*([\d_]+)\s*(?:#.*)?$")


def read(path: str, bindings: Sequence[str] = ()) -> SweepFile:
  """Reads a sweep file, then `bindings`, which override it.

  Raises:
    UsageError: the file is missing or not gin, or a name or a value is invalid.
  """
  gin.clear_config()
  try:
    values = _values(statements.read([path], bindings, _find))
  except UsageError as error:  # The reader's messages name the flags of an experiment.
    raise UsageError(re.sub("^--gin_(file|param)", r"--sweep_\1", str(error))) from error
  finally:
    gin.clear_config()
  missing = [f"sweep.{key}" for key in ("experiment", "metric") if not values.get(key)]
  if missing:
    raise UsageError(f"{path}: it must bind {' and '.join(missing)}")
  file = SweepFile(**values)
  try:
    _check(file)
  except UsageError as error:
    raise UsageError(f"{path}: {error}") from error
  return file


def _find(selector: str, parameter: str | None = None, value_of: str = ""
          ) -> gin.config.Configurable:
  """Looks up `sweep`, the only configurable allowed in a sweep file."""
  if selector.rpartition("/")[2] == "sweep":
    return find(selector, parameter)
  if parameter is None:
    raise UsageError("a sweep file configures only sweep; put gin references in quotes, such as "
                     f"'@{selector}'")
  raise UsageError(f"a sweep file binds only sweep.NAME; put '{selector}.{parameter} = ...' in "
                   f"sweep.params, or '{selector}.{parameter}' in sweep.grid")


def _values(bindings: Sequence[statements.Binding]) -> dict[str, Any]:
  """Returns `{NAME: value}` for each `sweep.NAME`, with macros replaced by their values."""
  checks.check(bindings)
  for binding in bindings:
    if binding.scope and not binding.is_macro:
      raise UsageError(f"{binding.where}: {binding.name}: a sweep has no scopes; use "
                       f"sweep.{binding.parameter}")
  return {binding.parameter: annotations.resolved(binding.value)
          for binding in checks.effective(bindings) if not binding.is_macro}


def _check(file: SweepFile) -> None:
  """Raises a UsageError if a sweep's settings conflict or are invalid, or a file is missing."""
  for path in file.gin_files:
    if not os.path.isfile(gin_files.found(path)):
      raise UsageError(f"sweep.gin_files: '{path}': no such file in {os.getcwd()}"
                       f"{gin_files.named_like(path)}")
  for binding in file.params:
    if "=" not in binding:
      raise UsageError(f"sweep.params: '{binding}': must be a binding, such as 'train.steps = 300'")
  for key, least in _LEAST.items():
    value = getattr(file, key)
    if value is not None and value < least:
      raise UsageError(f"sweep.{key} = {value}: must be at least {least}")
  if not file.space():
    raise UsageError("the search space is empty: bind sweep.grid, zip, random, seeds, optuna or "
                     "population")
  lengths = {name: len(values) for name, values in file.zip.items()}
  if len(set(lengths.values())) > 1:
    counts = ", ".join(f"'{name}' has {n}" for name, n in lengths.items())
    raise UsageError(f"sweep.zip: its lists must have the same length, but {counts}")
  for key in _DRAWN:
    if getattr(file, key) and not file.trials:
      raise UsageError(f"sweep.{key}: bind sweep.trials, the number of points")
  for key, users in _FOR.items():
    if getattr(file, key) is not None and not any(getattr(file, user) for user in users):
      raise UsageError(f"sweep.{key}: is only for sweep.{' or sweep.'.join(users)}, "
                       "which is not set")
  for key in ("optuna", "population"):
    others = [each for each in ("grid", "zip", "random", "seeds", "optuna") if each != key]
    if getattr(file, key) and any(getattr(file, each) for each in others):
      raise UsageError(f"sweep.{key} must be used alone: remove {', '.join(others)}")
  if file.population:
    _check_population(file)


def _check_population(file: SweepFile) -> None:
  """Raises a UsageError if a population cannot be trained in generations."""
  if (file.trials or 0) < 2:
    raise UsageError(f"sweep.trials = {file.trials}: a population must have at least two members")
  if file.interval is None:
    raise UsageError("sweep.population: bind sweep.interval, the number of steps between copies")
  if not (steps := file.steps()):
    raise UsageError("sweep.population: bind the total number of steps in sweep.params, such as "
                     "'train.steps = 2000'")
  if steps % file.interval:
    raise UsageError(f"sweep.interval = {file.interval}: must divide train.steps = {steps} in "
                     "sweep.params")
