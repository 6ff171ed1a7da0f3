"""The private names of gin, Keras and TensorFlow: each name is in one module."""

import ast
import configparser
import functools
import importlib
import importlib.metadata
from collections.abc import Iterator

from replicator.internals import tensorflow_internals
from tests.python_files import ROOT, check_none, imports, trees

import numpy as np
import pytest
import tensorflow as tf
from packaging.requirements import Requirement
from tensorflow.python.distribute.coordinator import values as remote

LAUNCHER = "tensorflow.python.distribute.cross_device_utils:CollectiveReplicaLauncher"
# The names that each module uses. Those without a class are attributes that only objects have: the
# tests of the objects are below.
MODULES = [
    ("gin-config", "replicator/configuration/gin_internals.py", [
        "gin.config:_CONFIG", "gin.config:_IMPORTS", "gin.config:_OPERATIVE_CONFIG",
        "gin.config:_REGISTRY", "gin.config:_SINGLETONS", "gin.config:_config_str",
        "gin.config:_format_value", "gin.config:_parse_context", "gin.config:_parse_scope",
        "gin.config:_set_config_is_locked", "gin.config_parser:ConfigParser._current_location",
        "gin.config_parser:ConfigParser._maybe_parse_configurable_reference"]),
    ("keras", "replicator/internals/keras_internals.py", [
        "keras.src.backend.common.global_state:get_global_attribute",
        "keras:Layer._flatten_layers", "keras:Optimizer._use_weight_decay",
        "keras:Optimizer._get_current_learning_rate", "keras:Optimizer._get_variable_index",
        "keras:Optimizer._var_key"]),
    ("tensorflow", "replicator/internals/tensorflow_internals.py", [
        "tensorflow:Operation._set_attr",
        "tensorflow.python.pywrap_tfe:TF_SetXlaEnableLazyCompilation",
        "tensorflow.python.distribute.coordinator.values:RemoteValueImpl._get_error",
        f"{LAUNCHER}._get_ordering_token", f"{LAUNCHER}._next_instance_key",
        "tensorflow.python.eager.context:Context.abort_collective_ops",
        "tensorflow.python.eager.context:Context.configure_coordination_service",
        "tensorflow.python.eager.context:Context.context_switches",
        "tensorflow.python.eager.context:Context.get_config_key_value",
        "tensorflow.python.eager.context:Context.report_error_to_cluster",
        "tensorflow.python.eager.context:Context.set_config_key_value",
        "tensorflow.python.eager.context:Context.wait_at_barrier",
        "tensorflow.python.eager.record:VariableWatcher",
        "tensorflow.python.eager.record:could_possibly_record",
        "tensorflow.python.eager.record:record_operation",
        "tensorflow.python.eager.record:should_record_backprop",
        "tensorflow.python.eager.record:stop_recording",
        "tensorflow.python.framework.ops:get_gradient_function",
        "tensorflow.python.lib.io._pywrap_record_io:RandomRecordReader.read",
        "tensorflow.python.ops.gen_math_ops:add_n",
        "tensorflow.python.trackable.autotrackable:AutoTrackable",
        "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace"]),
    ("tensorflow", "replicator/internals/first_use.py", [
        "tensorflow.python.eager:context",
        "tensorflow.python.eager.context:Context.ensure_initialized"]),
    ("tensorflow", "replicator/internals/compiled_functions.py", [
        "tensorflow:__internal__",
        "tensorflow.python.autograph.core.ag_ctx:ControlStatusCtx",
        "tensorflow.python.eager.lift_to_graph:UnliftableError",
        "tensorflow.python.eager.lift_to_graph:lift_to_graph",
        "tensorflow.python.eager.polymorphic_function.autograph_util:py_func_from_autograph",
        "tensorflow.python.eager.polymorphic_function.concrete_function:ConcreteFunction"])]
OF_OBJECTS = {"_has_fetched_to_local", "_functions", "_resource", "_remat_mode", "_launchers",
              "_cross_device_ops", "_device", "_distribute_strategy", "_group_key", "_group_size",
              "_options", "_value", "_unique_id", "_learning_rate", "_autograph",
              "_initialized"}
# TF-GAN's losses are patched there; setup.cfg pins its version.
TFGAN = "models/gan/losses/tfgan.py"


def test_the_private_names_are_where_they_were():
  check_none(f"{package} {importlib.metadata.version(package)} moved {name}: see {file}"
             for package, file, names in MODULES for name in names if not exists(name))


def exists(name: str) -> bool:
  module, _, attributes = name.partition(":")
  try:
    functools.reduce(getattr, attributes.split("."), importlib.import_module(module))
  except (ImportError, AttributeError):
    return False
  return True


def test_the_state_of_a_remote_value_is_seen():
  value = remote.RemoteValueImpl(None, tf.TensorSpec([]))
  value._set_values(tf.constant(1.0))
  assert not tensorflow_internals.is_fetched(value)
  value._set_error(ValueError())
  assert tensorflow_internals.is_fetched(value)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_collective_operations_are_launched_on_every_device(eager, request):
  # A strategy with TensorFlow's own collective operations, as between processes and on GPUs.
  strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
  launchers = tensorflow_internals.collective_launchers(strategy)
  x = np.arange(18.0).reshape(3, 3, 2)
  def launched() -> list:
    return [tensorflow_internals.launched(launchers, move, tf.unstack(x))
            for move in ("all_gather", "all_to_all")]
  gathered, exchanged = (launched if eager else tf.function(launched))()
  for device in range(3):
    np.testing.assert_array_equal(gathered[device], x)
    np.testing.assert_array_equal(exchanged[device], x[:, device])


# ---- A gradient of one's own --------------------------------------------------------------------


def cubed_with_gradient(x: tf.Tensor) -> tf.Tensor:
  """x^3, with 5 x^2 as its gradient."""
  return tensorflow_internals.with_gradient([x ** 3], [x], lambda dy: [dy * 5 * x ** 2])[0]


def by_tapes(function) -> list[tf.Tensor]:
  x = tf.constant(2.0)
  with tf.GradientTape() as outer, tf.GradientTape() as inner:
    outer.watch(x)
    inner.watch(x)
    y = 3 * function(2 * x)
    dy = inner.gradient(y, x)
  return [y, dy, outer.gradient(dy, x)]


# y = 3 (2x)^3, and with the gradient of the function, dy = 3 * 2 * 5 (2x)^2 and d2y = 240 x.
@pytest.mark.parametrize("run", [
    lambda: by_tapes(cubed_with_gradient),
    lambda: tf.function(lambda: by_tapes(cubed_with_gradient))(),
    lambda: tf.function(lambda: by_tapes(cubed_with_gradient), jit_compile=True)(),
    lambda: by_tapes(tf.function(cubed_with_gradient))],
    ids=["eager", "tapes in the graph", "xla", "tapes around the graph"])
def test_a_gradient_of_ones_own_is_used_by_every_tape(run):
  np.testing.assert_allclose(run(), [192, 480, 480])


# ---- Nobody else uses one -----------------------------------------------------------------------


def private_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
  """(line, name) of the private names that a file uses of objects other than `self` and `cls`."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
      name = node.attr
    elif (isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr")
          and isinstance(node.args[1], ast.Constant)):
      name = node.args[1].value
    else:
      continue
    if name == "__internal__" or (name.startswith("_") and not name.endswith("__")):
      yield node.lineno, name


def private_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
  """(line, name) of what a file imports from modules that their packages do not document."""
  return ((line, name) for line, name in imports(tree)
          if name.startswith(("tensorflow.python", "keras.src")))


def names_defined(tree: ast.AST) -> set[str]:
  """The names of functions, classes, variables and attributes that a file makes itself."""
  found = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      found.add(node.name)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      found.add(node.id)
    elif (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
          and ast.unparse(node.value) in ("self", "cls")):
      found.add(node.attr)
  return found


OWN_MODULES = {file for _, file, _ in MODULES}
NOT_OF_THESE_PACKAGES = {"_exit", "_replace"}  # os._exit, and a method of named tuples.


def others() -> dict[str, ast.Module]:
  """The files that own no private names."""
  return {file: tree for file, tree in trees().items() if file not in OWN_MODULES}


def test_every_private_name_in_use_is_listed():
  check_none(f"{file}:{line}: {name}" for _, file, names in MODULES
             for line, name in unlisted(trees()[file], names))


def unlisted(tree: ast.AST, names: list[str]) -> Iterator[tuple[int, str]]:
  listed = OF_OBJECTS | {name.rpartition(".")[2].rpartition(":")[2] for name in names}
  packages = {name.partition(":")[0].rpartition(".")[0] for name in names}
  yield from ((line, name) for line, name in private_uses(tree) if name not in listed)
  yield from ((line, name) for line, name in private_imports(tree)
              if name.rpartition(".")[0] not in packages)


def test_every_listed_name_is_in_use():
  used = {file: words(trees()[file]) for file in OWN_MODULES}
  check_none(f"{file} no longer uses {name}" for _, file, names in MODULES for name in names
             if name.rpartition(":")[2].rpartition(".")[2] not in used[file])
  check_none(f"no file uses {name}" for name in OF_OBJECTS - set.union(*used.values()))


def words(tree: ast.AST) -> set[str]:
  """The attributes and the imported names in a file."""
  return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
      name.rpartition(".")[2] for _, name in imports(tree)} | {
          node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def test_no_other_file_uses_a_private_name():
  allowed = NOT_OF_THESE_PACKAGES.union(*map(names_defined, others().values()))
  check_none(f"{file}:{line}: {name}" for file, tree in others().items()
             for line, name in [*private_uses(tree), *private_imports(tree)]
             if name not in allowed and (file, name) != (TFGAN, "_to_float"))


def test_only_versions_that_were_tested_are_allowed():
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  lines = setup["options"]["install_requires"].splitlines()
  requirements = {Requirement(line).name: Requirement(line).specifier for line in lines
                  if line and not line.startswith("#")}
  check_none(f"setup.cfg: {package}{requirements[package]}, and {version} is installed"
             for package in ("gin-config", "keras", "tensorflow", "tensorflow-gan")
             for version in [importlib.metadata.version(package)]
             if not {"<", "=="} & {bound.operator for bound in requirements[package]}
             or version not in requirements[package])
