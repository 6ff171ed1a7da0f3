"""The drawing of the house: its rooms, floor by floor, how imports run, and what they load."""

import ast
import functools
import graphlib
import pathlib
from collections import Counter
from collections.abc import Iterator

import replicator
from tests.programs.processes import python
from tests.python_files import PACKAGES, ROOT, check_none, imports, trees

# From the ground up. A room or file imports only what is on the floors below it.
ENGINE = [
    {"errors", "atomic", "processes", "moved"},
    {"cluster", "ray_cluster", "storage"},
    {"console"},
    {"internals", "configuration", "launch"},
    {"step"},
    {"collectives"},
    {"optimizers", "layers", "example_pool", "tracing", "workdir"},
    {"strategies", "inputs", "sweeps", "compare", "rerun", "new", "__main__"},
    {"checkpoints", "trackers"},
    {"divergence"},
    {"training"},
    {"app"},
    {"doctor"},
]
MODELS = [
    {"vision.images", "metrics.distances", "gan.losses", "gan.latents",
     "rl.environments", "rl.replay", "rl.networks"},
    {"vision.files", "vision.builtin", "vision.shards", "vision.augmentation", "gan.networks",
     "rl.acting", "rl.world_model"},
    {"vision.sources", "vision.classification", "gan.augmentation", "gan.penalties",
     "rl.actor_pool"},
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
WITHOUT_TENSORFLOW = {"errors", "atomic", "processes", "moved", "cluster", "storage",
                      "console", "configuration", "launch", "ray_cluster", "workdir", "sweeps",
                      "compare", "rerun", "trackers", "new", "__main__"}
WITH_TENSORFLOW_ALL_THE_SAME = {"replicator/console/quiet.py",
                                "replicator/workdir/writer.py"}


def module_of(file: str) -> str:
  """`replicator/step/random.py -> replicator.step.random`, `.../step/__init__.py -> ....step`."""
  return ".".join(pathlib.PurePath(file).with_suffix("").parts).removesuffix(".__init__")


NOTHING = ast.parse("")


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
             and FLOOR[room_of(other)] >= FLOOR[room_of(module)])


def test_models_use_no_private_room_of_the_engine():
  check_none(f"{file}:{line}: imports {other}" for file in files().values()
             if file.startswith("models/") for line, other in sorted(imported(file))
             if room_of(other) == "replicator.internals")


def test_no_circle_inside_a_room():
  # A room's own `__init__` hands on names of its files, which may import each other through it.
  rooms = {room for room in FLOOR if files().get(room, "").endswith("/__init__.py")}
  graph = {module: {other for _, other in imported(file) if room_of(other) == room_of(module)}
           - {module} - rooms for module, file in files().items() if module not in rooms}
  graphlib.TopologicalSorter(graph).prepare()  # A CycleError names the files.


def test_a_file_is_read_in_one_sitting():
  check_none(f"{file}: {length} lines" for file, length in lengths().items() if length > 350)


def test_a_room_is_small():
  rooms: Counter[str] = Counter()
  for file in trees():
    rooms[file.rpartition("/")[0]] += file.startswith("replicator/") and lengths()[file]
  check_none(f"{room}: {length:,} lines" for room, length in rooms.items() if length >= 1500)


# ---- TensorFlow ---------------------------------------------------------------------------------


def test_what_needs_no_tensorflow_loads_none():
  check_none(f"{file}:{node.lineno}" for module, file in files().items()
             if room_of(module).removeprefix("replicator.") in WITHOUT_TENSORFLOW
             and file not in WITH_TENSORFLOW_ALL_THE_SAME
             for node in trees()[file].body if loads_tensorflow(node))


def test_tensorflow_is_quiet_whatever_is_imported_first():
  check_none(f"{file}:{node.lineno}" for file, tree in trees().items()
             if file.startswith(("replicator/", "experiments/")) and not quiet_is_first(tree)
             and not quiet_is_first(trees().get(f"{file.rpartition('/')[0]}/__init__.py", NOTHING))
             for node in tree.body if loads_tensorflow(node))


QUIET = ("quiet.import_tensorflow()", "start.import_tensorflow(__name__)")


def quiet_is_first(tree: ast.Module) -> bool:
  """Whether a file imports TensorFlow quietly before it imports TensorFlow or Keras itself.

  False too if it does neither.
  """
  for node in tree.body:
    if isinstance(node, ast.Expr) and ast.unparse(node) in QUIET:
      return True
    if loads_tensorflow(node):
      return False
  return False


def loads_tensorflow(node: ast.stmt) -> bool:
  names = ([alias.name for alias in node.names] if isinstance(node, ast.Import)
           else [str(node.module)] if isinstance(node, ast.ImportFrom) else [])
  return bool({name.partition(".")[0] for name in names} & {"tensorflow", "keras"})


# The whole interface of the engine. A new name is a decision: write it here too.
FACADE = [
    "Dropout", "Evaluation", "ExamplePool", "GlobalBatchNorm", "InputContext", "Optimizer",
    "Replicator", "SpectralNorm", "UsageError",
    "all_concat", "all_gather", "all_max", "all_mean", "all_min", "all_sum", "all_to_all",
    "any_batch_size", "app", "batch_size", "broadcast", "load", "logical_device", "map_gather",
    "map_reduce", "microbatch", "num_replicas", "random", "recompute_grad", "reduce_scatter",
    "replica_id", "replicated", "scheduled", "schedules", "split", "step_number", "train",
    "use_standing_statistics", "wrap_optimizer", "wrap_optimizers"]


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


def test_imports_have_full_names():
  check_none(f"{file}:{line}: imports {name}" for file, tree in trees().items()
             for line, name in imports(tree) if name.startswith("."))


def test_only_the_engine_knows_of_strategies():
  outside = {file: tree for file, tree in trees().items() if not file.startswith("replicator/")}
  check_none(f"{file}:{line}: {name}" for file, tree in outside.items()
             for line, name in [*imports(tree), *attributes(tree)]
             if "distribute" in name.split("."))


def attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
  return ((node.lineno, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def test_no_two_classes_share_a_name():
  homes: dict[str, list[str]] = {}
  for file, tree in trees().items():
    for node in ast.walk(tree):
      if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        homes.setdefault(node.name, []).append(f"{file}:{node.lineno}")
  check_none(f"{name}: {', '.join(lines)}" for name, lines in homes.items() if len(lines) > 1)


# ---- The facade ---------------------------------------------------------------------------------


def test_the_facade_is_as_listed():
  assert replicator.__all__ == FACADE


def test_what_the_engine_loads_and_when_and_that_it_prints_nothing():
  look = "print(*{name.partition('.')[0] for name in sys.modules})"
  code = "\n".join([
      "import sys, replicator, replicator.launch.__main__; replicator.UsageError", look,
      "from replicator.console import quiet; quiet.import_tensorflow()", look,
      "for name in replicator.__all__: getattr(replicator, name)",
      "replicator.app.config.parse([], [])",  # As a notebook does.
      "import replicator.training.loop, replicator.doctor.__main__", look,
      "import replicator.compare, replicator.rerun, replicator.sweeps.command",
      "import replicator.configuration.operative, replicator.workdir.writer"])
  done = python("-c", code)
  assert done.stderr == ""
  light, before, after = (set(line.split()) for line in done.stdout.splitlines())
  assert not light & {"tensorflow", "keras", "numpy"}
  # Keras loads some of these by itself where they are installed.
  assert not (after - before) & {"tensorflow_gan", "tensorflow_hub", "matplotlib", "sklearn", "PIL"}


# ---- Documentation ------------------------------------------------------------------------------


# Keras documents these.
KERAS_METHODS = {"build", "call", "compute_output_shape", "get_config"}


def test_every_module_and_public_name_has_a_docstring():
  check_none([*(f"{file}:1: the module" for file, tree in trees().items()
                if ast.get_docstring(tree) is None),
              *(f"{file}:{name}" for file, tree in trees().items() for name in undocumented(tree))])


def undocumented(tree: ast.AST, prefix: str = "") -> Iterator[str]:
  """`line: name` of public classes, functions and methods without a docstring."""
  for node in ast.iter_child_nodes(tree):
    if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
      continue
    overrides = prefix and node.name in KERAS_METHODS
    if ast.get_docstring(node) is None and not overrides:
      yield f"{node.lineno}: {prefix}{node.name}"
    if isinstance(node, ast.ClassDef):
      yield from undocumented(node, f"{node.name}.")
