"""The drawing of `models/`: its rooms, floor by floor, and how imports run between them."""

import graphlib
import pathlib

from tests.python_files import TREES, check_none, imports

# From the ground up. A room or file imports only what is on the floors below it.
FLOORS = [
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
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
FILES = {file: tree for file, tree in TREES.items()
         if file.startswith("models/") and not file.endswith("/__init__.py")}


def room_of(module: str) -> str:
  """`models.vision.images.grid` -> `vision.images`, `models.export.card` -> `export`."""
  field, *rest = module.removeprefix("models.").split(".")
  return field if field == "export" else f"{field}.{rest[0]}" if rest else field


def module_of(file: str) -> str:
  return ".".join(pathlib.PurePath(file).with_suffix("").parts)


def test_every_room_has_a_floor():
  assert {room_of(module_of(file)) for file in FILES} == set(FLOOR)


def test_imports_run_down():
  check_none(f"{file}:{line}: {room_of(module_of(file))} imports {name}"
             for file, tree in FILES.items() for line, name in imports(tree)
             if name.startswith("models.") and room_of(name) in FLOOR
             and room_of(name) != room_of(module_of(file))
             and FLOOR[room_of(name)] >= FLOOR[room_of(module_of(file))])


def test_models_use_no_private_room_of_the_engine():
  check_none(f"{file}:{line}: imports {name}" for file, tree in FILES.items()
             for line, name in imports(tree) if name.startswith("replicator.internals"))


def test_no_circle_between_files():
  modules = {module_of(file): {name for _, name in imports(tree)} for file, tree in FILES.items()}
  graph = {module: {name[:len(other)] for other in set(modules) - {module} for name in names
                    if f"{name}.".startswith(f"{other}.")} for module, names in modules.items()}
  graphlib.TopologicalSorter(graph).prepare()  # A CycleError names the files.
