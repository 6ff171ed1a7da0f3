"""A sweep file: a gin file that binds `sweep.NAME`, and nothing else.

    sweep.experiment = 'experiments.sngan'
    sweep.gin_files = ['configs/sngan_digits.gin']
    sweep.params = ['train.steps = 300']             # of all trials
    sweep.metric = 'eval/classifier_frechet_distance'
    sweep.grid = {'LinearDecay.learning_rate': [2e-4, 4e-4], 'SNGAN.latent_dim': [16, 32]}
    sweep.seeds = [1, 2, 3]

The trials are the product of `grid`, `zip`, `random` and `seeds`, or are searched by `optuna`.
The name `gin_file` stands for a gin file, or a list of them, that a trial adds to the others. A
string that begins with @ or % is a reference of gin, as in `'@adam'`.
"""

import dataclasses
import logging
import os
import pathlib
import re
import sys
import tokenize
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder

import gin

from replicator.errors import UsageError, first_line, nearest
from replicator.sweeps import space


@dataclasses.dataclass(frozen=True)
class SweepFile:
  """What a sweep file says.

  Attributes:
    experiment: a module, `experiments.sngan`, or a file, `my_step.py`.
    metric: of `metrics.jsonl`; what the trials are compared by.
    goal: 'min' or 'max': which values of the metric are good.
    gin_files: of all trials, in order.
    params: bindings of all trials, which override the files.
    grid: `{name: [values]}`; every combination is a trial.
    zip: `{name: [values]}` of equal lengths; the i-th values go together.
    random: `{name: distribution}`, see `space.Distribution`; `trials` points are drawn.
    optuna: `{name: distribution}`; `trials` points are proposed by Optuna's TPE sampler.
    trials: number of points of `random` or `optuna`.
    seeds: values of `train.seed`; every point is tried with each.
    search_seed: of `random` and `optuna`.
    startup_trials: of `optuna`; so many points are drawn at random before the search goes by
      the earlier ones, and so many trials end before one is pruned.
    prune_after: of `optuna`; from this training step on, a trial whose best metric is worse
      than the median of the earlier trials at the same step is stopped; None for never.
    slurm: options for sbatch, such as '--partition=gpu'.
  """

  experiment: str
  metric: str
  goal: str = "min"
  gin_files: Sequence[str] = ()
  params: Sequence[str] = ()
  grid: Mapping[str, Sequence] = dataclasses.field(default_factory=dict)
  zip: Mapping[str, Sequence] = dataclasses.field(default_factory=dict)
  random: Mapping[str, Sequence] = dataclasses.field(default_factory=dict)
  optuna: Mapping[str, Sequence] = dataclasses.field(default_factory=dict)
  trials: int | None = None
  seeds: Sequence[int] = ()
  search_seed: int = 0
  startup_trials: int = 5
  prune_after: int | None = None
  slurm: Sequence[str] = ()

  def names(self) -> list[str]:
    """The names that differ between trials, sorted."""
    return sorted({*self.grid, *self.zip, *self.random, *self.optuna,
                   *([space.SEED] if self.seeds else [])})


_KEYS = {field.name: field for field in dataclasses.fields(SweepFile)}
sweep = gin.external_configurable(SweepFile, name="sweep")


def read(path: str, bindings: Sequence[str] = ()) -> SweepFile:
  """Reads a sweep file, then `bindings`, which override it.

  Raises:
    UsageError: no such file, not gin, a key that sweeps do not have, values that cannot be.
  """
  if not os.path.isfile(path):
    raise UsageError(f"--sweep_file={path}: no such file")
  with open(path, encoding="utf-8") as file:
    _check_lines(path, file.read())
  logging.disable(logging.ERROR)  # gin reports every place where an included file is not.
  try:
    gin.clear_config()
    gin.parse_config_files_and_bindings([path], list(bindings))
    result = sweep()
  except SyntaxError as error:
    where = f"{error.filename}:{error.lineno}" if error.filename else "--sweep_param"
    raise UsageError(f"{where}: not valid gin: {(error.text or error.msg).strip()}") from error
  except tokenize.TokenError as error:
    raise UsageError(f"{path}: not valid gin: {error.args[0]}") from error
  except (ValueError, TypeError, RuntimeError, OSError) as error:
    raise UsageError(_explain(path, error)) from error
  finally:
    logging.disable(logging.NOTSET)
    gin.clear_config()
  _check(path, result)
  return result


def _check_lines(path: str, text: str) -> None:
  """gin would take the last of two bindings, and every name that it knows, in silence."""
  lines: dict[str, int] = {}
  for match in re.finditer(r"^([\w./]+\.\w+)\s*=", text, re.MULTILINE):
    line, name = text.count("\n", 0, match.start(1)) + 1, match[1]
    if not name.startswith("sweep."):
      raise UsageError(f"{path}:{line}: a sweep file binds sweep.NAME only; write '{name} = ...' "
                       f"into sweep.params, or '{name}' as a name of sweep.grid")
    if name in lines:
      raise UsageError(f"{path}:{line}: {name} is bound on line {lines[name]} already; write it "
                       "once")
    lines[name] = line


def _explain(path: str, error: Exception) -> str:
  text = str(error)
  location = re.search(r'In file "([^"]+)", line (\d+)', text)
  where = f"{location[1]}:{location[2]}" if location else path
  if key := re.search(r"doesn't have a parameter named '([^']+)'", text):
    return (f"{where}: there is no sweep.{key[1]}.{nearest(key[1], _KEYS)} "
            f"There are: {', '.join(_KEYS)}")
  if missing := re.search(r"missing \d+ required positional arguments?: (.+)", text):
    names = " and ".join(f"sweep.{name}" for name in re.findall(r"'(\w+)'", missing[1]))
    return f"{where}: it must bind {names}"
  if name := re.search(r"No configurable matching reference '?[@%]?([\w./]+)", text):
    return f"{where}: @{name[1]}: write references of gin in quotes, as '@{name[1]}'"
  return f"{where}: {first_line(error)}"


def _check(path: str, file: SweepFile) -> None:
  try:
    _check_types(file)
    _check_names(file)
    _check_space(file)
  except UsageError as error:
    raise UsageError(f"{path}: {error}") from error


def _check_types(file: SweepFile) -> None:
  mappings = {"grid", "zip", "random", "optuna"}
  numbers = {"trials": 1, "search_seed": 0, "startup_trials": 1, "prune_after": 0}
  for key in _KEYS:
    value, ok, wanted = getattr(file, key), True, ""
    if key in mappings:
      ok = isinstance(value, dict) and all(isinstance(name, str) for name in value)
      wanted = "{'NAME': ...}"
    elif key in ("experiment", "metric"):
      ok, wanted = isinstance(value, str) and bool(value), "a string"
    elif key == "goal":
      ok, wanted = value in ("min", "max"), "'min' or 'max'"
    elif key == "seeds":
      ok = isinstance(value, list | tuple) and all(space.is_whole(seed) for seed in value)
      wanted = "a list of whole numbers, as [1, 2, 3]"
    elif key in numbers:
      ok = (value is None and _KEYS[key].default is None) or (
          space.is_whole(value) and value >= numbers[key])
      wanted = f"a whole number of at least {numbers[key]}"
    else:
      ok = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
      wanted = "a list of strings"
    if not ok:
      raise UsageError(f"sweep.{key} = {value!r}: must be {wanted}")
  _check_experiment(file.experiment)
  for gin_file in file.gin_files:
    if not os.path.isfile(gin_file):
      raise UsageError(f"sweep.gin_files: '{gin_file}': no such file in {os.getcwd()}")


def _check_experiment(experiment: str) -> None:
  """Finds its file; a package that holds it is not imported, which may load TensorFlow."""
  places: Sequence[str] | None = [os.getcwd(), *sys.path]
  packages = [] if experiment.endswith(".py") else experiment.split(".")[:-1]
  for count in range(len(packages)):
    spec = PathFinder.find_spec(".".join(packages[:count + 1]), places)
    places = spec.submodule_search_locations if spec else []
  if os.path.isfile(experiment) or PathFinder.find_spec(experiment, places):
    return
  files = [".".join([*packages, path.stem]) for place in (places or []) if packages
           for path in pathlib.Path(place).glob("*.py")]
  raise UsageError(f"sweep.experiment = '{experiment}': no such module or file."
                   f"{nearest(experiment, files)}")


def _check_names(file: SweepFile) -> None:
  owners: dict[str, str] = {}
  for binding in file.params:
    name, equals, _ = binding.partition("=")
    if not equals:
      raise UsageError(f"sweep.params: '{binding}': must be a binding, as 'train.steps = 300'")
    owners[name.strip()] = "params"
  for key in ("grid", "zip", "random", "optuna"):
    for name in getattr(file, key):
      if not re.fullmatch(r"[\w./]+", name):
        raise UsageError(f"sweep.{key}: '{name}': must be the name of a binding, as "
                         "'LinearDecay.learning_rate'")
      if name in owners:
        raise UsageError(f"sweep.{key}: '{name}' is in sweep.{owners[name]} already")
      owners[name] = key
  if file.seeds and space.SEED in owners:
    raise UsageError(f"sweep.seeds: '{space.SEED}' is in sweep.{owners[space.SEED]} already")


def _check_space(file: SweepFile) -> None:
  for key in ("grid", "zip"):
    for name, values in getattr(file, key).items():
      space.check_values(f"sweep.{key}: '{name}'", name, values)
  space.check_values("sweep.seeds", space.SEED, file.seeds or [0])
  lengths = {name: len(values) for name, values in file.zip.items()}
  if len(set(lengths.values())) > 1:
    counts = ", ".join(f"{n} of '{name}'" for name, n in lengths.items())
    raise UsageError(f"sweep.zip: its lists must be of one length, and there are {counts}")
  for key in ("random", "optuna"):
    for name, distribution in getattr(file, key).items():
      space.Distribution.make(f"sweep.{key}: '{name}'", name, distribution)
    if getattr(file, key) and not file.trials:
      raise UsageError(f"sweep.{key}: bind sweep.trials, the number of points")
  if file.trials and not (file.random or file.optuna):
    raise UsageError("sweep.trials: is for sweep.random or sweep.optuna, and there is none")
  if file.optuna and (file.grid or file.zip or file.random or file.seeds):
    raise UsageError("sweep.optuna goes by itself: leave grid, zip, random and seeds out")
  if file.prune_after is not None and not file.optuna:
    raise UsageError("sweep.prune_after: is for sweep.optuna, and there is none")
  if not file.names():
    raise UsageError("the space is empty: bind sweep.grid, zip, random, seeds or optuna")
