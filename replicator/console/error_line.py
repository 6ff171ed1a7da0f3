"""Describes any error in one line: the user's line of code, the cause, the layer and a remedy.

    step.py:31: ValueError: Dimensions must be equal, but are 4 and 7 with input shapes: [8,4],
    [8,7] (in the layer generator/blocks/1)
"""

import builtins
import contextlib
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

from replicator.errors import OneLineError, UsageError, chain_of, first_line, is_of_user, nearest

# TensorFlow's messages for two tensors with different dtypes, one of them float32.
_MISMATCH = (r"(?=.*\bfloat(32)?\b)(Input '\w+' of '\w+' Op has type .* of argument '\w+'|"
             r"Tensors in list passed to .* have types \[.*?\]|"
             r"Tensor conversion requested dtype \w+ for Tensor with dtype \w+|"
             r"cannot compute \w+ as input #\d+.* but is an? \w+ tensor)")

# TensorFlow's messages for common mistakes in a step, up to the part that a remedy replaces.
_REMEDIES = {
    rf"(?=.*\b(half|b?float16)\b){_MISMATCH}":
        "in half precision, a network's outputs are half precision too; give its last layer "
        "dtype=keras.config.floatx(), or use tf.cast(outputs, keras.config.floatx())",
    rf"(?=.*\b(double|float64)\b){_MISMATCH}":
        "the run computes in float64; use keras.config.floatx() instead of tf.float32",
    r"Using a symbolic `tf.Tensor` as a Python `bool` is not allowed":
        "a compiled step cannot use a Python `if` on tensors; use tf.where or tf.cond",
    r"Iterating over a symbolic `tf.Tensor` is not allowed":
        "use tf.unstack(x), or loop over range(x.shape[0])",
    r"len is not well defined for a symbolic Tensor": "use x.shape[0]",
    r"'\w*Tensor' object has no attribute 'numpy'":
        "a tensor of a compiled step has no value yet; compute with tf, or run with --eager",
    r"numpy\(\) is only available when eager execution is enabled":
        "a tensor of a compiled step has no value yet; compute with tf, and instead of "
        "set_weights(other.get_weights()) use set_weights(other.weights)",
    r"Cannot convert a symbolic tf.Tensor \(\S+\) to a numpy array":
        "a tensor of a compiled step has no value yet; compute with tf instead of NumPy",
    r"\w+\(\) argument must be .*, not 'SymbolicTensor'":
        "a tensor of a compiled step has no value yet; use tf.cast",
    r"'Optimizer' object has no attribute 'apply_gradients'":
        "use apply(gradients, variables), which averages them over the replicas first",
    r"'\w+' object has no attribute 'minimize'":
        "use wrap_optimizer(optimizer, variables), which has minimize(loss_fn, batch)",
    r"Method requires being in cross-replica context|next\(iterator\) should be called from":
        "a step already runs on every replica; call the network itself, not a strategy or its fit, "
        "evaluate, predict or train_on_batch",
    r"Unable to lift tensor <tf.Tensor 'seed_generator[^>]*>":
        "keras.random makes a generator in the step; draw with replicator.random",
    r"Unable to lift tensor <[^>]*>":
        "a variable is created in the step; create variables in its constructor, as its attributes",
    r"tf.function only supports singleton tf.Variables created on the first call":
        "create variables in the constructor of the step, as its attributes",
    r"(segment_ids|indices)\[.*\] = -?\d+ is (out of range|not in) \[0, \d+\)":
        "an index, such as a label, is too large or negative",
}


class _Frame(NamedTuple):
  file: str
  line: int
  names: dict[str, Any]  # Its locals and globals; empty if only the place is known.


def in_one_line(error: BaseException) -> str:
  """Returns the user's line, the type and message of the error's cause, and a hint."""
  chain = chain_of(error)
  frames = _frames(chain)
  own = _own(frames)
  said = filter(None, [type(chain[-1]).__name__, _reason(chain[-1], own)])
  return f"{_place(own)}{': '.join(said)}{_in_layer(frames)}"


def place_of(error: BaseException) -> str:
  """Returns where an error comes from: `step.py:31 (in the layer net/dense)`; '' if unknown."""
  frames = _frames(chain_of(error))
  return f"{_place(_own(frames)).removesuffix(': ')}{_in_layer(frames)}".strip()


def line_of(error: BaseException) -> str:
  """Returns the message of a one-line error unchanged; for other errors, `in_one_line`."""
  is_line = isinstance(chain_of(error)[-1], OneLineError)
  return first_line(error) if is_line else in_one_line(error)


@contextlib.contextmanager
def located() -> Iterator[None]:
  """Adds the user's line and the layer to a UsageError in the body, which is the user's code."""
  try:
    yield
  except Exception as error:
    chain = chain_of(error)
    if not isinstance(chain[-1], UsageError):
      raise
    frames = _frames(chain)
    raise UsageError(f"{_place(_own(frames))}{first_line(error)}{_in_layer(frames)}") from error


def _frames(chain: list[BaseException]) -> list[_Frame]:
  """Returns the calls that were active, innermost last."""
  found = []
  for error in chain:
    found += [_Frame(frame.f_code.co_filename, line, {**frame.f_globals, **frame.f_locals})
              for frame, line in traceback.walk_tb(error.__traceback__)]
    if re.search("Graph execution error|^in user code:", str(error)):  # From a graph or AutoGraph.
      found += [_Frame(file, int(line), {})
                for file, line in re.findall(r'File "(.+?)", line (\d+)', str(error))]
  return found


def _own(frames: list[_Frame]) -> list[_Frame]:
  return [frame for frame in frames if is_of_user(frame.file)
          and "__autograph_generated_file" not in frame.file]


def _place(own: list[_Frame]) -> str:
  return f"{os.path.relpath(own[-1].file)}:{own[-1].line}: " if own else ""


def _reason(error: BaseException, own: list[_Frame]) -> str:
  """Returns the most informative line of an error's message, with a remedy or a hint."""
  lines = [line for line in str(error).splitlines() if line.strip()] or [""]
  reason = lines[0]
  if "Graph execution error" in reason:  # One or more reasons follow the places.
    first = re.search(r"^ +\(0\) [A-Z_]+: +(.+)", str(error), re.MULTILINE)
    reason = first[1] if first else next(
        (line for line in lines[1:] if not re.match(" |Detected at node", line)), reason)
  for pattern, remedy in _REMEDIES.items():
    if found := re.search(pattern, reason):
      return f"{reason[:found.end()]}; {remedy}"
  hint = _meant(error, own[-1]) if own else ""
  reason = re.sub(r" for '\{\{node [^']*'", "", reason).removesuffix(".")
  return f"{reason}.{hint}" if hint else reason


def _meant(error: BaseException, frame: _Frame) -> str:
  """Returns a hint about a name that does not exist, such as ` Did you mean 'image'?`; or ''."""
  if isinstance(error, AttributeError) and error.name:
    return nearest(error.name, dir(error.obj))
  if isinstance(error, NameError) and error.name:
    return nearest(error.name, {*frame.names, *dir(builtins)})
  if isinstance(error, KeyError):
    source = linecache.getline(frame.file, frame.line)
    for name, value in frame.names.items():
      if isinstance(value, dict) and f"{name}[" in source and error.args[0] not in value:
        return f" '{name}' has: {', '.join(map(str, value))}"
  return ""


def _in_layer(frames: list[_Frame]) -> str:
  """Returns the path to the innermost active layer: ` (in the layer generator/blocks/1)`; or ''."""
  keras = sys.modules.get("keras")
  owners: list[Any] = []
  path: list[str] = []
  for frame in frames:
    item = frame.names.get("self")
    if item is None or any(item is owner for owner in owners):
      continue
    if keras and isinstance(item, keras.layers.Layer):
      # A layer under construction may have no name yet.
      name = _attribute(owners, item) or getattr(item, "name", type(item).__name__)
      if not name.startswith("_"):  # Skips private parts that do a layer's work, as in Sequential.
        path.append(name)
    owners.append(item)
  return f" (in the layer {'/'.join(path)})" if path else ""


def _attribute(owners: list[Any], item: Any) -> str:
  """Returns the owner's attribute that holds an object, even in a public list or dict; or ''."""
  for owner in reversed(owners):
    for name, value in getattr(owner, "__dict__", {}).items():
      if value is item:
        return name
      held = (value.items() if isinstance(value, dict)
              else enumerate(value) if isinstance(value, list | tuple) else ())
      for key, each in held:
        if each is item and not name.startswith("_"):
          return f"{name}/{key}"
  return ""
