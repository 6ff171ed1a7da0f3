"""The shape of the house: which way imports run, what the facade is, that all is documented."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import replicator

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("replicator", "models", "experiments")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
each_module = pytest.mark.parametrize(
    "path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])

# The whole interface of the engine. A new name is a decision: write it here too.
FACADE = [
    "Dropout", "Evaluation", "ExamplePool", "GlobalBatchNorm", "InputContext", "LinearDecay",
    "Optimizer", "Replicator", "SpectralNorm", "TrackedRun", "Tracker", "UsageError",
    "all_concat", "all_gather", "all_max", "all_mean", "all_min", "all_sum", "all_to_all", "app",
    "batch_size", "broadcast", "load", "logical_device", "map_gather", "map_reduce",
    "microbatch", "num_replicas", "random", "recompute_grad", "reduce_scatter", "replica_id",
    "scheduled", "schedules", "split", "step_number", "train",
    "use_standing_statistics", "wrap_optimizer"]


def parsed(path: pathlib.Path) -> ast.Module:
  return ast.parse(path.read_text(), filename=str(path))


def imports(tree: ast.AST) -> set[str]:
  """The dotted names of all imports, wherever they stand."""
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"line {node.lineno}: write the import with its full name"
      names.update(f"{node.module}.{alias.name}" for alias in node.names)
  return names


def packages(path: pathlib.Path) -> set[str]:
  return {name.partition(".")[0] for name in imports(parsed(path))}


# ---- Which way imports run ----------------------------------------------------------------------


def test_the_modules_are_found():
  assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(PACKAGES)
  assert "tensorflow" in packages(ROOT / "replicator" / "strategies" / "replicator.py")


@each_module
def test_imports_run_one_way(path):
  above = PACKAGES[PACKAGES.index(path.relative_to(ROOT).parts[0]) + 1:]
  assert not packages(path) & {*above, "tests", "benchmarks"}


@each_module
def test_only_the_engine_knows_of_strategies(path):
  if path.relative_to(ROOT).parts[0] == "replicator":
    return
  tree = parsed(path)
  attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
  assert "distribute" not in attributes
  assert not any("distribute" in name.split(".") for name in imports(tree))


@each_module
def test_gin_tf_is_never_imported(path):
  # It needs tf.estimator, which TensorFlow no longer has.
  assert not any(name.startswith("gin.tf") for name in imports(parsed(path)))


def test_no_two_classes_share_a_name():
  homes: dict[str, list[str]] = {}
  for path in MODULES:
    for node in ast.walk(parsed(path)):
      if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
  assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


# ---- The facade ---------------------------------------------------------------------------------


def test_the_facade_is_as_listed():
  assert replicator.__all__ == FACADE


@pytest.mark.parametrize("name", FACADE)
def test_every_name_of_the_facade_is_documented(name):
  value = getattr(replicator, name)
  doc = inspect.getdoc(value)
  assert doc and doc.splitlines()[0].endswith((".", ":")) and doc != inspect.getdoc(object)
  assert getattr(value, "__module__", f"replicator.{name}").startswith("replicator")


def test_an_unknown_name_is_an_attribute_error():
  assert not hasattr(replicator, "mirror")
  assert not hasattr(replicator, "__wrapped__")


def modules_after(*statements: str) -> list[set[str]]:
  """The top-level modules that a new Python process holds after each statement."""
  look = "print(*{name.partition('.')[0] for name in sys.modules})"
  code = "\n".join(["import sys", *(f"{statement}\n{look}" for statement in statements)])
  output = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True,
                          capture_output=True, text=True).stdout
  return [set(line.split()) for line in output.splitlines()]


def test_what_the_engine_loads_and_when():
  light, before, after = modules_after(
      "import replicator, replicator.launch; replicator.UsageError",
      "import tensorflow, keras",
      "for name in replicator.__all__: getattr(replicator, name)\nimport replicator.app.config")
  assert not light & {"tensorflow", "keras", "numpy"}
  # Keras loads some of these by itself where they are installed.
  assert not (after - before) & {"tensorflow_gan", "tensorflow_hub", "matplotlib", "sklearn", "PIL"}


def imports_in_a_new_process(*modules: str) -> str:
  """What a new process prints that imports some modules of the engine, on both streams."""
  environment = {name: value for name, value in os.environ.items()
                 if not name.startswith("TF_")}  # The tests have set the log level.
  done = subprocess.run(
      [sys.executable, "-c", f"import {', '.join(modules)}"], cwd=ROOT, env=environment,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
  return f"{done.stdout}{f'status {done.returncode}' if done.returncode else ''}"


def test_imports_print_nothing():
  # `test_house` proves it for the other modules of these rooms: here TensorFlow is the real one.
  assert imports_in_a_new_process(
      "replicator.launch.__main__", "replicator.compare", "replicator.rerun",
      "replicator.sweeps.command", "replicator.configuration.operative",
      "replicator.workdir.writer", "replicator.training.loop", "replicator.doctor.__main__") == ""


# ---- Documentation ------------------------------------------------------------------------------


def undocumented(tree: ast.AST, prefix: str = "") -> list[str]:
  """Public classes, functions and methods without a docstring."""
  missing = []
  for node in ast.iter_child_nodes(tree):
    if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
      continue
    overrides = prefix and node.name in KERAS_METHODS
    if ast.get_docstring(node) is None and not overrides:
      missing.append(f"{prefix}{node.name}")
    if isinstance(node, ast.ClassDef):
      missing += undocumented(node, f"{node.name}.")
  return missing


# Keras documents these.
KERAS_METHODS = {"build", "call", "compute_output_shape", "get_config"}


@each_module
def test_every_module_and_public_name_has_a_docstring(path):
  tree = parsed(path)
  assert ast.get_docstring(tree), "the module has no docstring"
  assert not undocumented(tree)
