"""Private Keras names that the engine needs. A test checks them; no other file uses them."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from replicator.errors import UsageError
from replicator.internals.compiled_functions import calls_of_functions

import keras
import tensorflow as tf
from keras.src.backend.common import global_state


def layers_in(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """Returns a layer and all layers inside it, at any depth."""
  return list(layer._flatten_layers())


def sublayers_of(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """Returns the layers directly inside a layer, in the order in which they were added."""
  if isinstance(layer, keras.Model):
    return list(layer.layers)
  return layer._flatten_layers(include_self=False, recursive=False)


def compute_alone(layer: keras.layers.Layer) -> None:
  """Makes `predict` and `evaluate` of Keras models compute locally, on one device.

  Otherwise models made in a strategy's scope wait for its other processes, which do not call them.
  """
  for each in layers_in(layer):
    if isinstance(each, keras.Model):
      each._distribute_strategy = None


class VariableScope(keras.StatelessScope):
  """A context in which Keras variables have the given values, and assignments do not change them.

  `values` maps the ids of variables to tensors. Add `values_of_scope()` to keep the values of an
  enclosing scope, which `keras.StatelessScope` alone would hide. After the context, `assigned` has
  the variables that were assigned in it, `read` those that were read but have no value in it, and
  `losses` the losses that layers added. Pass `drops` if `assign` is never called, so that new
  values are dropped. Weights created in the context would have no value, so creating them raises a
  UsageError.

  A `tf.function` that is called in the context is inlined. With `for_python`, the context applies
  only to Python code, not to graphs, which use the variables.
  """

  def __init__(self, values: dict[int, tf.Tensor], drops: bool = False, for_python: bool = False):
    super().__init__(collect_losses=True, initialize_variables=False)
    self.state_mapping = dict(values)
    self.assigned: list[keras.Variable] = []
    self.read: dict[int, keras.Variable] = {}
    self.drops = drops or drops_assignments()
    self.for_python = for_python
    self._functions: contextlib.AbstractContextManager = (
        contextlib.nullcontext() if for_python else calls_of_functions(inlined=True))

  @property
  def applies(self) -> bool:
    """Whether it applies to the code that is running or being traced."""
    return not self.for_python or tf.executing_eagerly()

  def __enter__(self) -> "VariableScope":
    self._functions.__enter__()
    return super().__enter__()

  def __exit__(self, *error: Any) -> None:
    super().__exit__(*error)
    self._functions.__exit__(*error)
    scope = self.original_scope
    while isinstance(scope, VariableScope):
      scope = scope.original_scope
    # Other variables, such as a metric's, live only in the context. Outer scopes may create values.
    made = [v for v in self.read.values() if v.trainable and own_value(v) is None]
    if made and scope is None and error[0] is None:
      raise UsageError(f"the variable '{made[0].path}' is created where weights are replaced, such "
                       "as in averaged_weights or recompute_grad, and would have no value; build "
                       "its network earlier, in the constructor of the step: begin it with "
                       "keras.Input(shape), or call its build")

  def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
    """Returns the value of a variable here, if it has one; Keras calls it to read variables."""
    value = super().get_current_value(variable) if self.applies else None
    if value is None:
      self.read[id(variable)] = variable
      if isinstance(self.original_scope, VariableScope):
        self.original_scope.get_current_value(variable)  # Records the read there too.
    return value

  def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
    """Records the new value of a variable; Keras calls it for an assignment."""
    if not self.applies:
      own_value(update[0]).assign(update[1])
      return
    if all(variable is not update[0] for variable in self.assigned):
      self.assigned.append(update[0])
    super().add_update(update)

  def assign(self) -> None:
    """Assigns the new values outside the context."""
    for variable in self.assigned:
      variable.assign(self.get_current_value(variable))


def global_seed_state() -> keras.Variable | None:
  """Returns the state of the generator that `keras.random` uses without a seed, if it exists."""
  generator = global_state.get_global_attribute("global_seed_generator")
  return generator.state if generator else None


def drops_assignments() -> bool:
  """Returns whether the current scope drops assignments to Keras variables."""
  scope = _scope()
  return isinstance(scope, VariableScope) and scope.drops


def values_of_scope() -> dict[int, tf.Tensor]:
  """Returns the values that the current scope gives to Keras variables, by the variables' ids."""
  scope = _scope()
  return dict(scope.state_mapping) if scope else {}


def is_in_scope() -> bool:
  """Returns whether a scope that is not `for_python` replaces values or drops assignments here."""
  scope = _scope()
  return scope is not None and not (isinstance(scope, VariableScope) and scope.for_python)


def _scope() -> keras.StatelessScope | None:
  """Returns the scope that applies here, which Keras reveals only to a new inner scope."""
  with keras.StatelessScope(initialize_variables=False) as inner:
    scope = inner.original_scope
  return None if isinstance(scope, VariableScope) and not scope.applies else scope


def own_value(variable: keras.Variable) -> Any:
  """Returns the TensorFlow variable that holds the value, whatever scope or precision applies here.

  It is None for a variable created in a scope, until the scope ends.
  """
  return variable._value


def is_recomputed(layer: keras.layers.Layer) -> bool:
  """Returns whether Keras recomputes the call of a layer created in a `keras.RematScope`."""
  mode = layer._remat_mode
  return bool(mode) and (mode.mode in ("full", "larger_than")
                         or layer.name in (mode.layer_names or ()))


_CALLED = {
    "build", "variables", "iterations", "learning_rate", "_get_current_learning_rate",
    "update_step", "assign", "assign_add", "assign_sub", "_use_weight_decay",
    "exclude_from_weight_decay", "add_variable", "add_variable_from_reference",
    "add_optimizer_variables", "_var_key", "_get_variable_index", "get_config", "from_config",
    "save_own_variables", "load_own_variables"}
"""Optimizer methods that the engine calls, even indirectly, or that training does not use."""


def unsupported_update(optimizer: keras.optimizers.Optimizer) -> str | None:
  """Explains why `update_step` of an optimizer cannot replace its `apply`; None if it can."""
  kind, base = type(optimizer), keras.optimizers.Optimizer
  rate = rate_of(optimizer)
  if callable(rate) and not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
    return "its learning rate is a function, which is called only once; use a number or a schedule"
  if isinstance(optimizer, keras.optimizers.Muon):
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    if version < (3, 13):
      # It finds its slots by the Keras path of a variable, which plain variables do not have.
      return f"Muon needs Keras 3.13 or newer, and this is Keras {keras.__version__}"
    if optimizer.weight_decay != getattr(optimizer, "adam_weight_decay", optimizer.weight_decay):
      return (f"{kind.__name__} has different values for adam_weight_decay and weight_decay, but "
              "one applies to all variables; set both to the same value")
    base = keras.optimizers.Muon  # With equal values, its decay is that of other optimizers.
  for name in dir(keras.optimizers.Optimizer):
    usual = inspect.getattr_static(base, name)
    if (inspect.isfunction(usual) and inspect.getattr_static(optimizer, name) is not usual
        and name not in _CALLED and not name.startswith("__")):
      return (f"{kind.__name__} has its own method {name}, which would never be called: a step "
              "calls update_step for each variable instead of Keras' apply; do this work in "
              "update_step, or on the gradients before apply")
  return None


def rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
  """Returns the learning rate of an optimizer as given: a schedule, a function, or a variable."""
  return optimizer._learning_rate


def decays_weights_of(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
  """Returns whether the weight decay of an optimizer applies to a variable."""
  return optimizer._use_weight_decay(variable)


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
  """Returns the variables of an optimizer by role: `iterations`, `learning_rate`, `momentums/0`."""
  found = {}
  for name, value in vars(optimizer).items():
    if name not in ("_variables", "_trainable_variables"):  # Keras' own lists of all variables.
      items = {f"/{i}": each for i, each in enumerate(value)} if isinstance(value, list) else {
          "": value}
      found.update({name.lstrip("_") + place: each for place, each in items.items()
                    if isinstance(each, keras.Variable)})
  return found


@contextlib.contextmanager
def errors_unchanged() -> Iterator[None]:
  """Makes Keras raise the errors of layers unchanged, in the body.

  Otherwise it replaces them with its own errors, and removes calls from their tracebacks.
  """
  changes = keras.config.is_traceback_filtering_enabled()
  keras.config.disable_traceback_filtering()
  try:
    yield
  finally:
    if changes:
      keras.config.enable_traceback_filtering()
