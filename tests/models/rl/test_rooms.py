"""The rooms of `models/rl/`, floor by floor: an import runs down."""

from tests.python_files import TREES, check_none, imports

FLOORS = [{"environments", "replay", "networks"}, {"acting"}, {"actor_pool"}, {"agents"}]
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}


def room_of(module: str) -> str:
  return module.removeprefix("models.rl.").partition(".")[0]


def test_imports_run_down():
  files = {file: room_of(file.removesuffix(".py").replace("/", ".")) for file in TREES
           if file.startswith("models/rl/") and file != "models/rl/__init__.py"}
  assert set(files.values()) == set(FLOOR)
  check_none(f"{file}:{line}: imports {name}" for file, room in files.items()
             for line, name in imports(TREES[file]) if name.startswith("models.rl.")
             and room_of(name) != room and FLOOR[room_of(name)] >= FLOOR[room])
