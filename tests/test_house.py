"""The drawing of the house: its rooms, floor by floor, and how imports run between them."""

import ast
import graphlib
import pathlib
from collections import Counter

from tests.python_files import ROOT, TREES, check_none, imports

# From the ground up. A room or file imports only what is on the floors below it.
ENGINE = [
    {"errors", "atomic", "processes", "moved"},
    {"console"},
    {"internals", "configuration", "launch", "ray_cluster"},
    {"step"},
    {"collectives"},
    {"optimizers", "layers", "example_pool", "tracing", "workdir"},
    {"strategies", "sweeps", "compare", "rerun", "new", "__main__"},
    {"checkpoints", "trackers"},
    {"divergence"},
    {"training"},
    {"app"},
    {"doctor"},
]
MODELS = [
    {"vision.images", "metrics.distances", "gan.checks", "gan.losses", "gan.latents",
     "rl.environments", "rl.replay", "rl.networks"},
    {"vision.files", "vision.builtin", "vision.shards", "vision.augmentation", "gan.networks",
     "rl.acting"},
    {"vision.sources", "vision.classification", "gan.augmentation", "gan.penalties",
     "rl.actor_pool"},
    {"vision.convert", "vision.preview", "metrics.extractors", "metrics.images", "rl.agents"},
    {"metrics.comparison", "metrics.table"},
    {"metrics.cache", "metrics.memorization"},
    {"gan.evaluation"},
    {"export", "gan.gans"},
]
FLOOR = {f"{package}.{room}": number
         for package, floors in (("replicator", ENGINE), ("models", MODELS))
         for number, floor in enumerate(floors) for room in floor}
# These load no TensorFlow, so that commands and pages start fast.
WITHOUT_TENSORFLOW = {"errors", "atomic", "processes", "moved", "console", "configuration",
                      "launch", "ray_cluster", "workdir", "sweeps", "compare", "rerun", "trackers",
                      "new", "__main__"}
WITH_TENSORFLOW_ALL_THE_SAME = {"replicator/console/quiet.py",
                                "replicator/workdir/writer.py"}


def module_of(file: str) -> str:
  """`replicator/step/random.py -> replicator.step.random`, `.../step/__init__.py -> ....step`."""
  return ".".join(pathlib.PurePath(file).with_suffix("").parts).removesuffix(".__init__")


NOTHING = ast.parse("")
# Without the facade and its like in each field of `models/`.
FILES = {module: file for module, file in ((module_of(file), file) for file in TREES)
         if not file.startswith("experiments/")
         and module.count(".") > module.startswith("models.")}
LENGTHS = {file: len((ROOT / file).read_text().splitlines()) for file in TREES}


def imported(file: str) -> set[tuple[int, str]]:
  """(line, module) of the modules of the house that a file imports, wherever the import stands."""
  found = set()
  for line, name in imports(TREES[file]):
    while name and name not in FILES:
      name = name.rpartition(".")[0]
    found.add((line, name))
  return {(line, name) for line, name in found if name}


def room_of(module: str) -> str:
  """`replicator.step.random -> replicator.step`, `models.gan.losses.tfgan -> models.gan.losses`."""
  package, room, *inside = module.split(".")
  is_field = package == "models" and room != "export"
  return ".".join([package, room, *inside[:is_field]])


def test_every_room_and_file_has_a_floor():
  assert set(map(room_of, FILES)) == set(FLOOR)


def test_imports_run_down():
  check_none(f"{file}:{line}: {room_of(module)} imports {other}"
             for module, file in FILES.items() for line, other in sorted(imported(file))
             if other.partition(".")[0] == module.partition(".")[0]
             and room_of(other) != room_of(module)
             and FLOOR[room_of(other)] >= FLOOR[room_of(module)])


def test_models_use_no_private_room_of_the_engine():
  check_none(f"{file}:{line}: imports {other}" for file in FILES.values()
             if file.startswith("models/") for line, other in sorted(imported(file))
             if room_of(other) == "replicator.internals")


def test_no_circle_inside_a_room():
  # A room's own `__init__` hands on names of its files, which may import each other through it.
  rooms = {room for room in FLOOR if FILES.get(room, "").endswith("/__init__.py")}
  graph = {module: {other for _, other in imported(file) if room_of(other) == room_of(module)}
           - {module} - rooms for module, file in FILES.items() if module not in rooms}
  graphlib.TopologicalSorter(graph).prepare()  # A CycleError names the files.


def test_a_file_is_read_in_one_sitting():
  check_none(f"{file}: {length} lines" for file, length in LENGTHS.items() if length > 350)


def test_a_room_is_small():
  rooms: Counter[str] = Counter()
  for file in TREES:
    rooms[file.rpartition("/")[0]] += file.startswith("replicator/") and LENGTHS[file]
  check_none(f"{room}: {length:,} lines" for room, length in rooms.items() if length >= 1500)


# ---- TensorFlow ---------------------------------------------------------------------------------


def test_what_needs_no_tensorflow_loads_none():
  check_none(f"{file}:{node.lineno}" for module, file in FILES.items()
             if room_of(module).removeprefix("replicator.") in WITHOUT_TENSORFLOW
             and file not in WITH_TENSORFLOW_ALL_THE_SAME
             for node in TREES[file].body if loads_tensorflow(node))


def test_tensorflow_is_quiet_whatever_is_imported_first():
  check_none(f"{file}:{node.lineno}" for file, tree in TREES.items()
             if file.startswith(("replicator/", "experiments/")) and not quiet_is_first(tree)
             and not quiet_is_first(TREES.get(f"{file.rpartition('/')[0]}/__init__.py", NOTHING))
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
