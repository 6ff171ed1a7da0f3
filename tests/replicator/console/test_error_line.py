"""The one line of an error of any kind: the cause, the user's line and the layer."""

import functools
import pathlib
import re

from replicator import Replicator
from replicator.console.error_line import in_one_line
from replicator.errors import UsageError, chain_of, first_line

import keras
import pytest
import tensorflow as tf

FILE = pathlib.Path(__file__)


class Failing(keras.layers.Layer):
  """A layer whose call raises an error."""

  def __init__(self, error: Exception):
    super().__init__(name="failing")
    self.error = error

  def call(self, x):
    raise self.error  # In the layer.


class Block(keras.layers.Layer):

  def __init__(self, error: Exception):
    super().__init__()
    self.parts = [keras.layers.Identity(), Failing(error)]

  def build(self, shape):  # Otherwise Keras makes a call of its own, and warns if that fails.
    self.built = True

  def call(self, x):
    for part in self.parts:
      x = part(x)
    return x


class Step(tf.Module):
  """A step with a layer deep inside that fails."""

  def __init__(self, error: Exception):
    super().__init__()
    self.network = keras.Sequential([keras.layers.Identity(), Block(error)])
    self.networks = {"generator": self.network}

  def __call__(self) -> dict:
    return {"loss": tf.reduce_mean(self.network(tf.zeros([2, 3])))}


@pytest.fixture(params=["hidden by Keras", "not hidden"])
def hidden(request):
  """Keras wraps the errors of layers, and filters their tracebacks; or it does not."""
  before = keras.config.is_traceback_filtering_enabled()
  (keras.config.enable_traceback_filtering if request.param == "hidden by Keras"
   else keras.config.disable_traceback_filtering)()
  yield request.param == "hidden by Keras"
  (keras.config.enable_traceback_filtering if before
   else keras.config.disable_traceback_filtering)()


def raised(function) -> Exception:
  with pytest.raises(Exception) as caught:
    function()
  return caught.value


def line_of(code: str) -> str:
  lines = FILE.read_text().splitlines()
  return f"{FILE.name}:{1 + next(i for i, line in enumerate(lines) if code in line)}: "


@pytest.mark.parametrize("make_error, said", [
    (lambda: ValueError("of the user\nand more"), "ValueError: of the user"),
    (ZeroDivisionError, "ZeroDivisionError"),
    (lambda: KeyError("x"), "KeyError: 'x'"),
    (lambda: tf.errors.InvalidArgumentError(None, None, "of tf"), "InvalidArgumentError: of tf")])
def test_an_error_in_a_layer_names_its_cause_its_line_and_the_layer(make_error, said, hidden):
  step = Step(make_error())
  line = in_one_line(raised(step))
  assert line_of("# In the layer.") + said in line
  assert "\n" not in line and line.endswith("/parts/1)")
  # Keras removes its own calls.
  assert hidden or re.search(r" \(in the layer network/block\w*/parts/1\)$", line)


@pytest.mark.parametrize("strategy, devices", [("default", None), ("mirrored", 2)])
@pytest.mark.usefixtures("hidden")
def test_a_usage_error_in_a_layer_of_a_step_comes_out_as_itself(strategy, devices):
  error = raised(lambda: Replicator(strategy, logical_cpus=devices).run(Step(UsageError("say b"))))
  assert type(error) is UsageError
  assert line_of("# In the layer.") + "say b (in the layer network/" in first_line(error)


@pytest.mark.usefixtures("hidden")
def test_the_cause_in_a_function_that_autograph_converts_is_found():
  step = Step(UsageError("say b"))

  @tf.function
  def converted():
    return step()

  error = raised(converted)
  assert str(error).startswith("in user code:")
  assert first_line(error) == "say b" and isinstance(chain_of(error)[-1], UsageError)


def test_the_users_line_in_a_function_that_autograph_converts_is_found():
  @tf.function
  def converted(x):
    return x + tf.zeros([5])  # With another shape.

  line = in_one_line(raised(lambda: converted(tf.zeros([3]))))
  assert line.partition("ValueError: ")[0].endswith(line_of("# With another shape."))
  assert line.endswith("Dimensions must be equal, but are 3 and 5 with input shapes: [3], [5]")


@pytest.mark.parametrize("fails, hint", [
    (lambda: pritn, "name 'pritn' is not defined. Did you mean 'print'?"),  # noqa: F821
    (lambda: functols, "name 'functols' is not defined. Did you mean 'functools'?"),  # noqa: F821
    (lambda batch={"image": 1}: batch["image"]["x"], "not subscriptable")])
def test_a_name_that_does_not_exist_gets_a_hint(fails, hint):
  assert hint in in_one_line(raised(fails))
  assert functools  # It is what the second row means.


def test_a_layer_in_a_dict_is_named_by_its_key():
  step = Step(ValueError("of the user"))
  step.parts = {"first": [], "second": Block(ZeroDivisionError())}
  step.shortcut = step.parts["second"].parts[1]  # The owner that is nearest counts.
  assert in_one_line(raised(lambda: calls(step))).endswith(" (in the layer parts/second/parts/1)")


class Unfinished(keras.layers.Layer):
  """Fails before Keras gives it a name."""

  def __init__(self):
    int("x")
    super().__init__()


def test_a_layer_that_is_still_being_made_has_no_name():
  line = in_one_line(raised(Unfinished))
  assert "ValueError: " in line and line.endswith("(in the layer Unfinished)")


def calls(self) -> None:
  """Calls a layer, as a method of its owner does."""
  self.parts["second"](tf.zeros([2, 3]))


@pytest.mark.parametrize("message, line", [
    ("\n\n  \nof a library.\nand more", "ValueError: of a library"),
    ("indices[3] = -1 is not in [0, 10) [[{{node x}}]]",
     "ValueError: indices[3] = -1 is not in [0, 10); an index, such as a label, is too large or "
     "negative"),
    ("Graph execution error:\n\nDetected at node x\n  File y\n2 root error(s) found.\n"
     "  (0) INVALID_ARGUMENT:  of the user\n  (1) CANCELLED: of another",
     "ValueError: of the user"),
    ("Graph execution error:\n\nDetected at node x\n  File y\nof the user\nand more",
     "ValueError: of the user")])
def test_the_line_of_a_message_that_says_most_is_shown(message, line):
  assert in_one_line(ValueError(message)) == line


MIXED = [lambda half, other: half - other, lambda half, other: tf.concat([half, other], 0),
         lambda half, other: tf.concat([other, half], 0),
         lambda half, other: tf.add_n([half, other]), lambda half, other: other * half]


@pytest.mark.parametrize("kind, remedy", [
    ("float16", "last layer dtype=keras.config.floatx(), or use tf.cast(outputs, keras.config."),
    ("bfloat16", "last layer dtype=keras.config.floatx(), or use tf.cast(outputs, keras.config."),
    ("float64", "the run computes in float64; use keras.config.floatx() instead of tf.float32")])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_tensors_of_two_dtypes_get_the_remedy_of_the_precision(kind, remedy, is_compiled):
  for mixed in MIXED:
    function = tf.function(mixed) if is_compiled else mixed
    line = in_one_line(raised(functools.partial(
        function, tf.zeros([2, 3], kind), tf.zeros([2, 3]))))
    assert FILE.name in line and remedy in line and "\n" not in line
  line = in_one_line(raised(lambda: tf.zeros([2]) - tf.zeros([2], tf.int32)))
  assert "keras.config" not in line


@pytest.mark.parametrize("strategy, devices", [("default", None), ("mirrored", 2)])
def test_an_error_of_the_compiled_step_names_the_reason_and_the_line(strategy, devices):
  def step(x):
    return tf.debugging.check_numerics(tf.math.log(-x), "too large")  # When it runs.
  error = raised(lambda: Replicator(strategy, logical_cpus=devices).run(step, tf.ones([4])))
  line = in_one_line(error)
  assert line_of("# When it runs.") in line and "too large" in line and "\n" not in line
