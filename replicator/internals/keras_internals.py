"""Private names of Keras that the engine needs. A test checks them; no other file uses one."""

import contextlib
from collections.abc import Iterator
from typing import Any

from replicator.errors import UsageError

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state, stateless_scope


def layers_in(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """A layer and all layers inside it, however deep."""
  return list(layer._flatten_layers())


def sublayers_of(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """The layers directly inside a layer, in the order in which it got them."""
  if isinstance(layer, keras.Model):
    return list(layer.layers)
  return layer._flatten_layers(include_self=False, recursive=False)


class VariableScope(keras.StatelessScope):
  """A context in which Keras variables have the given values, and assignments change no variable.

  `values` are tensors by the id of their variable. To keep what an enclosing scope replaces, which
  `keras.StatelessScope` alone would hide, add `values_of_scope()`. After the context, `assigned`
  are the variables that were assigned in it, `read` those that it has no value for and that were
  read, and `losses` those that layers added. Whoever never calls `assign` says that it `drops` the
  new values. Weights that are made in the context would hold no value: a UsageError is raised.
  """

  def __init__(self, values: dict[int, tf.Tensor], drops: bool = False):
    super().__init__(collect_losses=True, initialize_variables=False)
    self.state_mapping = dict(values)
    self.assigned: list[keras.Variable] = []
    self.read: dict[int, keras.Variable] = {}
    self.drops = drops or drops_assignments()

  def __enter__(self) -> "VariableScope":
    super().__enter__()
    self._before = len(_without_value())
    return self

  def __exit__(self, *error: Any) -> None:
    super().__exit__(*error)
    # Others, such as those of a metric, live in the context alone.
    made = [v for v in _without_value()[self._before:] if v.trainable]
    if made and error[0] is None:
      raise UsageError(f"the variable '{made[0].path}' is made where weights are replaced, by "
                       "averaged_weights, recompute_grad or the like, and would hold no value; "
                       "build its network before, in the constructor of the step: begin it with "
                       "keras.Input(shape), or call its build")

  def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
    """The value of a variable here, if it has one; Keras calls it to read the variable."""
    value = super().get_current_value(variable)
    if value is None:
      self.read[id(variable)] = variable
      if isinstance(self.original_scope, VariableScope):
        self.original_scope.get_current_value(variable)  # It was read there, too.
    return value

  def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
    """Keeps a new value of a variable; Keras calls it for an assignment."""
    if all(variable is not update[0] for variable in self.assigned):
      self.assigned.append(update[0])
    super().add_update(update)

  def assign(self) -> None:
    """Assigns the new values, for what encloses the context."""
    for variable in self.assigned:
      variable.assign(self.get_current_value(variable))


def drops_assignments() -> bool:
  """Whether a scope here will forget what is assigned to Keras variables."""
  scope = stateless_scope.get_stateless_scope()
  return isinstance(scope, VariableScope) and scope.drops


def own_value(variable: keras.Variable) -> tf.Variable:
  """The variable of TensorFlow that holds the value, whatever scope or precision applies here."""
  return variable._value


def values_of_scope() -> dict[int, tf.Tensor]:
  """The values that a scope gives to Keras variables here, by the id of the variable."""
  scope = stateless_scope.get_stateless_scope()
  return dict(scope.state_mapping) if scope else {}


def _without_value() -> list[keras.Variable]:
  """The variables that were made in scopes, and hold no value yet."""
  return global_state.get_global_attribute("uninitialized_variables") or []


def is_recomputed(layer: keras.layers.Layer) -> bool:
  """Whether Keras recomputes the layer's call, because it was made in a `keras.RematScope`."""
  mode = layer._remat_mode
  return bool(mode) and (mode.mode in ("full", "larger_than")
                         or layer.name in (mode.layer_names or ()))


def set_trainable(owner: keras.layers.Layer | keras.Variable, value: bool) -> None:
  """Sets `trainable` of a layer or a variable alone; Keras' own setter changes what is inside."""
  owner._trainable = value


def unsupported_update(optimizer: keras.optimizers.Optimizer) -> str | None:
  """Why the engine cannot call `update_step` of an optimizer on plain variables; or None."""
  kind = type(optimizer)
  if kind._backend_update_step is not keras.optimizers.Optimizer._backend_update_step:
    return f"{kind.__name__} does more in an update than one variable at a time"
  version = tuple(map(int, keras.__version__.split(".")[:2]))
  if isinstance(optimizer, keras.optimizers.Muon) and version < (3, 13):
    # It finds its slots by the Keras path of a variable, which a plain one does not have.
    return f"Muon needs Keras 3.13 or newer, and this is Keras {keras.__version__}"
  if optimizer.weight_decay != getattr(optimizer, "adam_weight_decay", optimizer.weight_decay):
    return (f"{kind.__name__} has another adam_weight_decay than weight_decay, and one applies to "
            "all; write both alike")
  return None


def decays_weights_of(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
  """Whether the weight decay of an optimizer applies to a variable."""
  return optimizer._use_weight_decay(variable)


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
  """The variables of an optimizer by role: `iterations`, `learning_rate`, `momentums/0`."""
  found = {}
  for name, value in vars(optimizer).items():
    if name not in ("_variables", "_trainable_variables"):  # Keras' own lists of all.
      items = {f"/{i}": each for i, each in enumerate(value)} if isinstance(value, list) else {
          "": value}
      found.update({name.lstrip("_") + place: each for place, each in items.items()
                    if isinstance(each, keras.Variable)})
  return found


def slot_key(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> str:
  """The key by which an optimizer finds the slots of a variable: its `_unique_id`."""
  return optimizer._var_key(variable)


@contextlib.contextmanager
def errors_unchanged() -> Iterator[None]:
  """A context in which Keras raises, in this thread, the errors of layers as they are.

  Otherwise it raises others in their place, and removes calls from their tracebacks.
  """
  changes = keras.config.is_traceback_filtering_enabled()
  keras.config.disable_traceback_filtering()
  try:
    yield
  finally:
    if changes:
      keras.config.enable_traceback_filtering()


_cast, _convert = backend.core.cast, backend.core.convert_to_tensor


def _exact_cast(x, dtype):
  is_rounded = isinstance(x, float) and dtype == "float64"
  return tf.constant(x, tf.float64) if is_rounded else _cast(x, dtype)


def _exact_convert(x, dtype=None, **options):
  is_rounded = isinstance(x, float) and dtype is None and keras.config.floatx() == "float64"
  return tf.constant(x, tf.float64) if is_rounded else _convert(x, dtype, **options)


@contextlib.contextmanager
def exact_casts() -> Iterator[None]:
  """A context in which Keras makes a Python float float64 itself, and not a float32 of it.

  A cast to float64 does, and where the precision is float64 so does a tensor without a dtype, such
  as the settings of Keras' schedules.
  """
  backend.core.cast, backend.core.convert_to_tensor = _exact_cast, _exact_convert
  try:
    yield
  finally:
    backend.core.cast, backend.core.convert_to_tensor = _cast, _convert


@contextlib.contextmanager
def iterations_read(optimizer: keras.optimizers.Optimizer, iterations: tf.Tensor
                    ) -> Iterator[None]:
  """A context in which an optimizer uses `iterations` and does not read its own count each time."""
  variable = optimizer._iterations
  optimizer._iterations = iterations
  try:
    yield
  finally:
    optimizer._iterations = variable
