"""The drawing of the house: its rooms, floor by floor, how imports run, and what they load."""

import ast
import functools
import graphlib
import pathlib
from collections.abc import Iterator

import replicator
from tests.programs.processes import python
from tests.python_files import PACKAGES, ROOT, check_none, imports, trees

# From the ground up. A wing or file imports only what is on its own floor or below it.
ENGINE = [
    {"console", "errors", "atomic", "processes"},
    {"configuration", "internals"},
    {"step"},
    {"strategies"},
    {"training"},
    {"tools"},
    {"app", "__main__"},
    {"doctor"},
]
MODELS = [
    {"vision.images", "metrics.distances", "gan.losses", "rl.environments", "rl.replay",
     "rl.networks"},
    {"vision.files", "vision.builtin", "vision.shards", "vision.augmentation", "gan.networks",
     "gan.latents", "rl.acting", "rl.world_model"},
    {"vision.sources", "vision.classification", "gan.augmentation", "gan.penalties",
     "rl.actor_pool", "rl.recording", "rl.rate_limiter"},
    {"diffusion.networks", "diffusion.edm", "diffusion.distillation"},
    {"vision.convert", "vision.preview", "vision.self_supervision", "metrics.extractors",
     "metrics.images", "rl.agents"},
    {"metrics.comparison"},
    {"metrics.cache", "metrics.memorization"},
    {"gan.evaluation"},
    {"export", "gan.gans", "diffusion.gaussians"},
]
FLOOR = {f"{package}.{room}": number
         for package, floors in (("replicator", ENGINE), ("models", MODELS))
         for number, floor in enumerate(floors) for room in floor}
# These load no TensorFlow, so that commands and pages start fast.
WITHOUT_TENSORFLOW = [
    "replicator/console/", "replicator/configuration/", "replicator/errors.py",
    "replicator/atomic.py", "replicator/processes.py", "replicator/strategies/cluster/",
    "replicator/training/workdir/", "replicator/tools/launch/", "replicator/tools/sweeps/",
    "replicator/tools/new/", "replicator/tools/compare.py", "replicator/tools/rerun.py",
    "replicator/__main__.py", "replicator/app/start.py", "replicator/doctor/__main__.py",
    "replicator/doctor/experiment.py"]
WITH_TENSORFLOW_ALL_THE_SAME = {"replicator/training/workdir/record.py",
                                "replicator/training/workdir/sinks.py"}


def module_of(file: str) -> str:
  """`replicator/step/random.py -> replicator.step.random`, `.../step/__init__.py -> ....step`."""
  return ".".join(pathlib.PurePath(file).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def files() -> dict[str, str]:
  """The file of each module, without the facade and its like in each field of `models/`."""
  return {module: file for module, file in ((module_of(file), file) for file in trees())
          if not file.startswith("experiments/")
          and module.count(".") > module.startswith("models.")}


@functools.cache
def lengths() -> dict[str, int]:
  """The number of lines of each file."""
  return {file: len((ROOT / file).read_text().splitlines()) for file in trees()}


def imported(file: str) -> set[tuple[int, str]]:
  """(line, module) of the modules of the house that a file imports, wherever the import stands."""
  found = set()
  for line, name in imports(trees()[file]):
    while name and name not in files():
      name = name.rpartition(".")[0]
    found.add((line, name))
  return {(line, name) for line, name in found if name}


def room_of(module: str) -> str:
  """`replicator.step.random -> replicator.step`, `models.gan.losses.tfgan -> models.gan.losses`."""
  package, room, *inside = module.split(".")
  is_field = package == "models" and room != "export"
  return ".".join([package, room, *inside[:is_field]])


def test_every_room_and_file_has_a_floor():
  assert set(map(room_of, files())) == set(FLOOR)


def test_imports_run_down():
  check_none(f"{file}:{line}: {room_of(module)} imports {other}"
             for module, file in files().items() for line, other in sorted(imported(file))
             if other.partition(".")[0] == module.partition(".")[0]
             and room_of(other) != room_of(module)
             and FLOOR[room_of(other)] >= FLOOR[room_of(module)] + module.startswith("replicator"))


def test_no_circle_of_imports():
  """Between files; imports for type checkers do not count, which would need them at run time."""
  graph = {module: {other for _, other in imported(file)} - {module}
           for module, file in files().items()}
  packages = {module for module, file in files().items() if file.endswith("/__init__.py")}
  graph = {module: others - packages for module, others in graph.items() if module not in packages}
  graphlib.TopologicalSorter(graph).prepare()  # A CycleError names the files.


def test_a_file_is_read_in_one_sitting():
  check_none(f"{file}: {length} lines" for file, length in lengths().items() if length > 300)


# ---- TensorFlow ---------------------------------------------------------------------------------


def test_what_needs_no_tensorflow_loads_none():
  check_none(f"{file}:{node.lineno}" for file in files().values()
             if file.startswith(tuple(WITHOUT_TENSORFLOW))
             and file not in WITH_TENSORFLOW_ALL_THE_SAME
             for node in trees()[file].body if loads_tensorflow(node))


def loads_tensorflow(node: ast.stmt) -> bool:
  names = ([alias.name for alias in node.names] if isinstance(node, ast.Import)
           else [str(node.module)] if isinstance(node, ast.ImportFrom) else [])
  return bool({name.partition(".")[0] for name in names} & {"tensorflow", "keras"})


# The whole interface of the engine. A new name is a decision: write it here too.
FACADE = [
    "Callback", "Checkpoints", "Dropout", "EarlyStopping", "Evaluation", "ExamplePool",
    "GlobalBatchNorm", "Guard", "Histograms", "InputContext", "MLflow", "Optimizer", "Preempted",
    "Profile", "Replicator", "RunFailed", "SpectralNorm", "Trackio", "UsageError", "WandB",
    "all_concat", "all_gather", "all_max", "all_mean", "all_min", "all_sum", "all_to_all",
    "any_batch_size", "app", "batch_size", "batches", "broadcast", "load", "logical_device",
    "map_gather", "map_reduce", "mean", "microbatch", "num_replicas", "random", "recompute_grad",
    "reduce_scatter", "replica_id", "replicated", "scheduled", "schedules", "split",
    "step_number", "train", "use_standing_statistics", "wrap_optimizer", "wrap_optimizers"]


# ---- Which way imports run ----------------------------------------------------------------------


def test_the_modules_are_found():
  assert {file.partition("/")[0] for file in trees()} == set(PACKAGES)
  replicator_file = trees()["replicator/strategies/replicator.py"]
  assert "tensorflow" in {name for _, name in imports(replicator_file)}


def test_imports_run_one_way():
  check_none(f"{file}:{line}: imports {name}" for file, tree in trees().items()
             for line, name in imports(tree)
             if name.partition(".")[0] in {
                 *PACKAGES[PACKAGES.index(file.partition("/")[0]) + 1:], "tests", "benchmarks"})


def test_only_the_engine_knows_of_strategies():
  outside = {file: tree for file, tree in trees().items() if not file.startswith("replicator/")}
  check_none(f"{file}:{line}: {name}" for file, tree in outside.items()
             for line, name in [*imports(tree), *attributes(tree)]
             if "distribute" in name.split("."))


def attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
  return ((node.lineno, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute))


# ---- The facade ---------------------------------------------------------------------------------


def test_the_facade_is_as_listed():
  assert replicator.__all__ == FACADE


def test_what_the_engine_loads_and_when_and_that_it_prints_nothing():
  look = "print(*{name.partition('.')[0] for name in sys.modules})"
  code = "\n".join([
      "import sys, replicator, replicator.tools.launch.__main__; replicator.UsageError", look,
      "import replicator.tools.sweeps.__main__",
      "import tensorflow", look,
      "for name in replicator.__all__: getattr(replicator, name)",
      "replicator.app.config.parse([], [])",  # As a notebook does.
      "import replicator.training.loop, replicator.doctor.__main__", look,
      "import replicator.tools.compare, replicator.tools.rerun",
      "import replicator.configuration.operative, replicator.training.workdir.writer"])
  done = python("-c", code)
  assert done.stderr == ""
  light, before, after = (set(line.split()) for line in done.stdout.splitlines())
  assert not light & {"tensorflow", "keras", "numpy"}
  # Keras loads some of these by itself where they are installed.
  assert not (after - before) & {"tensorflow_gan", "tensorflow_hub", "matplotlib", "sklearn", "PIL"}
