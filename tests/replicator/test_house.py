"""The drawing of the house: the rooms of `replicator/`, floor by floor, and how imports run."""

import ast
import graphlib
import pathlib

import pytest

HOUSE = pathlib.Path(__file__).parents[2] / "replicator"

# From the ground up. A room or file imports only what is on the floors below it.
FLOORS = [
    {"errors", "atomic", "processes"},
    {"console"},
    {"internals", "configuration", "launch", "ray_cluster"},
    {"step"},
    {"collectives"},
    {"optimizers", "layers", "example_pool", "tracing", "workdir"},
    {"strategies", "sweeps", "compare", "rerun"},
    {"checkpoints", "trackers"},
    {"divergence"},
    {"training"},
    {"app"},
    {"doctor"},
]
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
FILES = sorted(HOUSE.rglob("*.py"))
ROOMS = sorted(folder.name for folder in HOUSE.iterdir() if (folder / "__init__.py").exists())
# These load no TensorFlow, so that commands and pages start fast.
WITHOUT_TENSORFLOW = {"errors", "atomic", "processes", "console", "configuration", "launch",
                      "ray_cluster", "workdir", "sweeps", "compare", "rerun", "trackers"}
WITH_TENSORFLOW_ALL_THE_SAME = {"console/quiet.py", "workdir/writer.py"}


def module_of(path: pathlib.Path) -> str:
  """`replicator/step/random.py -> step.random`, and `step/__init__.py -> step`."""
  parts = path.relative_to(HOUSE).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported(path: pathlib.Path) -> set[str]:
  """The modules of the house that a file imports, wherever the import stands."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
      continue
    for name in names:
      if name.partition(".")[0] == "replicator":
        inside = name.removeprefix("replicator").lstrip(".")
        while inside not in MODULES:
          inside = inside.rpartition(".")[0]
        found.add(inside)
  return found


def room_of(module: str) -> str:
  return module.partition(".")[0]


def test_every_room_and_file_has_a_floor():
  assert {room_of(module) for module in MODULES if module} == set(FLOOR)


@pytest.mark.parametrize("module", sorted(filter(None, MODULES)))
def test_imports_run_down(module):
  room = room_of(module)
  above = {other for other in imported(MODULES[module]) - {""}
           if room_of(other) != room and FLOOR[room_of(other)] >= FLOOR[room]}
  assert not above


@pytest.mark.parametrize("room", ROOMS)
def test_no_circle_inside_a_room(room):
  inside = {module: {other for other in imported(path) if room_of(other) == room} - {module}
            for module, path in MODULES.items() if room_of(module) == room}
  # A room's own `__init__` hands on names of its files, which may import each other through it.
  inside.pop(room)
  tuple(graphlib.TopologicalSorter(
      {module: others - {room} for module, others in inside.items()}).static_order())


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(HOUSE)) for path in FILES])
def test_a_file_is_read_in_one_sitting(path):
  assert len(path.read_text().splitlines()) <= 350


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}),
                         ids=lambda folder: str(folder.relative_to(HOUSE)))
def test_a_room_is_small(folder):
  assert sum(len(path.read_text().splitlines()) for path in folder.glob("*.py")) < 1500


@pytest.mark.parametrize("path", [path for path in FILES
                                  if room_of(module_of(path)) in WITHOUT_TENSORFLOW
                                  and str(path.relative_to(HOUSE))
                                  not in WITH_TENSORFLOW_ALL_THE_SAME],
                         ids=lambda path: str(path.relative_to(HOUSE)))
def test_what_needs_no_tensorflow_loads_none(path):
  assert not any(map(loads_tensorflow, ast.parse(path.read_text()).body))


def quiet_is_first(path: pathlib.Path) -> bool:
  """Whether a file calls `quiet.import_tensorflow()` before it imports TensorFlow or Keras itself.

  False too if it does neither.
  """
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.Expr) and ast.unparse(node) == "quiet.import_tensorflow()":
      return True
    if loads_tensorflow(node):
      return False
  return False


def loads_tensorflow(node: ast.stmt) -> bool:
  names = ([alias.name for alias in node.names] if isinstance(node, ast.Import)
           else [str(node.module)] if isinstance(node, ast.ImportFrom) else [])
  return bool({name.partition(".")[0] for name in names} & {"tensorflow", "keras"})


@pytest.mark.parametrize("path", [path for path in FILES if any(
    map(loads_tensorflow, ast.parse(path.read_text()).body))],
                         ids=lambda path: str(path.relative_to(HOUSE)))
def test_tensorflow_is_quiet_whatever_is_imported_first(path):
  assert quiet_is_first(path.parent / "__init__.py") or quiet_is_first(path)
