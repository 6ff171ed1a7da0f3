"""Reads the pickles in a file of PyTorch without running anything that they ask for.

A pickle is a program for a small stack machine, and Python's own machine may call any function.
This one knows the few instructions that describe named tensors, makes inert records of these, and
refuses the rest. So a file can neither run code nor ask for memory that it has no bytes for.
"""

import math
import pickletools
import warnings
from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

_DTYPES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2",
           "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
           "ByteStorage": "u1", "BoolStorage": "?"}
_FUNCTIONS = ("collections OrderedDict", "torch._utils _rebuild_tensor_v2",
              "torch._utils _rebuild_parameter")
_KNOWN = {*_FUNCTIONS, *(f"torch {name}" for name in _DTYPES)}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_MAX_INSTRUCTIONS = 2_000_000  # A network of 1,000 tensors needs 30,000.


class Refused(Exception):
  """The reason why a file is not read, in a few words that follow `because`."""


class Storage(NamedTuple):
  """Numbers that a file holds elsewhere under `key`: `size` of type `dtype`."""

  key: str
  dtype: str
  size: int

  @property
  def num_bytes(self) -> int:
    """The number of bytes that it takes in the file."""
    return self.size * np.dtype(self.dtype).itemsize


class View(NamedTuple):
  """A tensor: the elements of a storage from `offset` on, with strides in elements."""

  storage: Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]

  def of(self, numbers: np.ndarray) -> np.ndarray:
    """The tensor, as a read-only view of the numbers of its storage [size]."""
    strides = [stride * numbers.itemsize for stride in self.strides]
    return np.lib.stride_tricks.as_strided(
        numbers[self.offset:], self.shape, strides, writeable=False)


class _Name(NamedTuple):
  """The name of a function or class that a pickle mentions. It is never looked up."""

  text: str


def read(file: BinaryIO) -> Any:
  """The value of the pickle that begins at the position of a file in memory.

  It consists of numbers, strings, tuples, lists, dictionaries, and `View`s in place of tensors. The
  position is then behind the pickle.

  Raises:
    Refused: the pickle is damaged, or asks for anything else.
  """
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # About strange escapes in the names of a damaged file.
      return _run(pickletools.genops(file))
  except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
    raise Refused("a description of tensors in it is damaged") from error


def _run(instructions: Iterable[tuple[Any, Any, Any]]) -> Any:
  machine = _Machine()
  for number, (instruction, argument, _) in enumerate(instructions):
    if number >= _MAX_INSTRUCTIONS:
      raise Refused(f"a description of tensors has more than {_MAX_INSTRUCTIONS:,} instructions")
    machine.run(instruction.name, argument)
  return machine.stack.pop()


class _Machine:
  """The stack machine; a wrong program ends with `Refused` or an error of Python's own."""

  def __init__(self) -> None:
    self.stack: list[Any] = []
    self._marks: list[int] = []
    self._memo: dict[int, Any] = {}

  def run(self, name: str, argument: Any) -> None:
    """Runs one instruction."""
    stack = self.stack
    match name:
      case "PROTO" | "STOP":
        pass
      case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
        stack.append(argument)
      case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
        stack.append(_CONSTANTS[name])
      case "EMPTY_LIST":
        stack.append([])
      case "EMPTY_DICT":
        stack.append({})
      case "MARK":
        self._marks.append(len(stack))
      case "TUPLE":
        stack.append(tuple(self._above_mark()))
      case "TUPLE1" | "TUPLE2" | "TUPLE3":
        items = [stack.pop() for _ in range(int(name[-1]))]
        stack.append(tuple(reversed(items)))
      case "BINPUT" | "LONG_BINPUT":
        self._memo[argument] = stack[-1]
      case "BINGET" | "LONG_BINGET":
        stack.append(self._memo[argument])
      case "APPEND" | "APPENDS":
        items = self._above_mark() if name == "APPENDS" else [stack.pop()]
        stack[-1].extend(items)
      case "SETITEM" | "SETITEMS":
        items = self._above_mark() if name == "SETITEMS" else [stack.pop() for _ in range(2)][::-1]
        _set(stack[-1], items)
      case "GLOBAL":
        stack.append(_known(argument))
      case "BINPERSID":
        stack.append(_storage(stack.pop()))
      case "REDUCE":
        arguments = stack.pop()
        stack.append(_made(stack.pop().text, arguments))
      case "BUILD":  # Attributes, such as the versions that a state dictionary carries.
        stack.pop()
      case _:
        raise Refused(f"it has the pickle instruction {name}, which no file of tensors needs")

  def _above_mark(self) -> list[Any]:
    start = self._marks.pop()
    items = self.stack[start:]
    del self.stack[start:]
    return items


def _set(target: dict[str, Any], items: list[Any]) -> None:
  for key, value in zip(items[::2], items[1::2], strict=True):
    if not isinstance(key, str):  # The hash of a nested tuple may take years.
      raise Refused("a dictionary in it has keys that are not strings")
    target[key] = value


def _known(name: str) -> _Name:
  if name not in _KNOWN:
    raise Refused(f"it asks for {name.replace(' ', '.')[:80]!r}, and only tensors are read")
  return _Name(name)


def _storage(described: Any) -> Storage:
  kind, name, key, _, size, *views = described
  dtype = _DTYPES[name.text.removeprefix("torch ")]
  if kind != "storage" or not isinstance(key, str) or any(view is not None for view in views):
    raise Refused("it has a storage of a kind that `torch.save` does not write")
  if not _are_counts([size]):
    raise Refused("the size of a storage is not a count")
  return Storage(key, dtype, size)


def _made(function: str, arguments: Any) -> Any:
  """What the call of a known function stands for."""
  if function == "collections OrderedDict" and arguments == ():
    return {}
  if function == "torch._utils _rebuild_parameter":
    return arguments[0]
  if function == "torch._utils _rebuild_tensor_v2":
    return _view(*arguments[:4])
  raise Refused(f"it calls {function.replace(' ', '.')} in a way that is not known")


def _view(storage: Storage, offset: int, shape: tuple, strides: tuple) -> View:
  if not (isinstance(storage, Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)
          and len(shape) == len(strides) <= 8 and _are_counts([offset, *shape, *strides])):
    raise Refused("a tensor is not described by counts")
  last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
  # A stride may be greater than the storage, or 0, and the tensor greater: NumPy could not hold it.
  fits = (min(shape, default=1) > 0 and math.prod(shape) <= storage.size
          and last < storage.size and max(strides, default=0) <= storage.size)
  if not fits:
    raise Refused(f"a tensor reaches outside its storage of {storage.size:,} elements")
  return View(storage, offset, shape, strides)


def _are_counts(numbers: list[Any]) -> bool:
  return all(type(number) is int and 0 <= number < 2 ** 63 for number in numbers)
