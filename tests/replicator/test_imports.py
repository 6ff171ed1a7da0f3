"""The shape of the house: which way imports run, what the facade is, that all is documented."""

import ast
from collections.abc import Iterator

import replicator
from tests.programs.processes import python
from tests.python_files import PACKAGES, TREES, check_none, imports

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
  assert {file.partition("/")[0] for file in TREES} == set(PACKAGES)
  assert "tensorflow" in {name for _, name in imports(TREES["replicator/strategies/replicator.py"])}


def test_imports_run_one_way():
  check_none(f"{file}:{line}: imports {name}" for file, tree in TREES.items()
             for line, name in imports(tree)
             if name.partition(".")[0] in {
                 *PACKAGES[PACKAGES.index(file.partition("/")[0]) + 1:], "tests", "benchmarks"})


def test_imports_have_full_names():
  check_none(f"{file}:{line}: imports {name}" for file, tree in TREES.items()
             for line, name in imports(tree) if name.startswith("."))


def test_only_the_engine_knows_of_strategies():
  outside = {file: tree for file, tree in TREES.items() if not file.startswith("replicator/")}
  check_none(f"{file}:{line}: {name}" for file, tree in outside.items()
             for line, name in [*imports(tree), *attributes(tree)]
             if "distribute" in name.split("."))


def attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
  return ((node.lineno, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def test_no_two_classes_share_a_name():
  homes: dict[str, list[str]] = {}
  for file, tree in TREES.items():
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
  check_none([*(f"{file}:1: the module" for file, tree in TREES.items()
                if ast.get_docstring(tree) is None),
              *(f"{file}:{name}" for file, tree in TREES.items() for name in undocumented(tree))])


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
