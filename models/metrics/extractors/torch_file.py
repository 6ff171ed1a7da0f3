"""Reads tensors from a file that `torch.save` wrote, without PyTorch and without running its code.

Both formats are read: the ZIP archive of today, and the stream of five pickles before version 1.6.
A pickle is a program for a small stack machine, and may call any function and ask for any memory.
Here Python's machine knows the few instructions that describe named tensors, and three functions.
"""

import io
import math
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from pickle import _Unpickler as PythonMachine
from typing import Any, ClassVar

import numpy as np

from replicator import UsageError

_DTYPES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2",
           "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
           "ByteStorage": "u1", "BoolStorage": "?"}
_INSTRUCTIONS = (
    pickle.PROTO, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
    pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE,
    pickle.TUPLE, pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3,
    pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.GLOBAL,
    pickle.BINPERSID, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET)
_LONGEST = 2 ** 22  # Bytes of the pickles. A network of 1,000 tensors needs 150,000.
_MAGIC = 0x1950A86A20F9469CFC6C  # The first pickle of the older format.
_VERSION = 1001  # The second.


class _Refused(Exception):
  """The reason why a file is not read, in a few words that follow `because`."""


def load(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads the tensors of a file that holds a state dictionary, by name.

  They are read-only views that share the numbers which they share in the file, and may have any
  strides. The memory is at most three times the size of the file, whatever the file says: sizes
  are checked before anything is read by them, and a record that is compressed is refused.

  Raises:
    UsageError: there is no such file, it is damaged, or it holds anything but named tensors of
      booleans, integers, or floats of 16, 32 or 64 bits.
  """
  try:
    content = Path(path).read_bytes()
  except OSError as error:
    raise UsageError(f"{path} cannot be read ({error.strerror}): write the path of a file of "
                     "weights that `torch.save` wrote") from error
  try:
    found = _of_archive(content) if content[:4] == b"PK\3\4" else _of_stream(content)
    if not isinstance(found, dict) or not found:
      raise _Refused("it is no dictionary, or has no tensors: save `model.state_dict()`")
    for name, value in found.items():
      if not isinstance(value, np.ndarray):
        raise _Refused(f"{name[:80]!r} in it is not a tensor: save `model.state_dict()` alone")
    return found
  except (_Refused, zipfile.BadZipFile, struct.error, pickle.UnpicklingError, AttributeError,
          EOFError, LookupError, OSError, OverflowError, RuntimeError, TypeError,
          ValueError) as error:  # As `zipfile` and Python's machine raise them for damaged files.
    reason = error if isinstance(error, _Refused) else "it is damaged or incomplete"
    raise UsageError(f"{path} is not read as weights of PyTorch, because {reason}") from error


def _of_archive(content: bytes) -> Any:
  """Reads a ZIP archive: `NAME/data.pkl` describes tensors, `NAME/data/KEY` are numbers."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    records = archive.infolist()
    if any(record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size
           for record in records):
      raise _Refused("its records are compressed, which `torch.save` does not do")
    if sum(record.file_size for record in records) > len(content):
      raise _Refused("its records overlap: together they are longer than the file")
    sizes = {record.filename: record.file_size for record in records}
    folders = [name.removesuffix("data.pkl") for name in sizes if name.endswith("/data.pkl")]
    if len(folders) != 1:
      raise _Refused("it is a ZIP archive without the one `data.pkl` that `torch.save` writes")
    byte_order = f"{folders[0]}byteorder"
    if byte_order in sizes and archive.read(byte_order) != b"little":
      raise _Refused("it comes from a machine with the other order of bytes")
    pickles = _Machine(archive.read(f"{folders[0]}data.pkl"), len(content))
    found = pickles.load()
    for key, numbers in pickles.storages.items():
      name = f"{folders[0]}data/{key}"
      if sizes.get(name) != numbers.nbytes:
        raise _Refused(f"a tensor needs the record {name[:80]!r} of {numbers.nbytes:,} bytes, and "
                       f"it has {sizes.get(name, 'none')}")
      numbers[:] = np.frombuffer(archive.read(name), numbers.dtype)
  return found


def _of_stream(content: bytes) -> Any:
  """Reads a file of the older format.

  Five pickles: a magic number, a version, facts about the machine, the description of the tensors,
  and the keys of the storages. Then, in the order of the keys, the size and the numbers of each.
  """
  pickles = _Machine(content, len(content))
  magic = pickles.load() if content[:1] == b"\x80" else None
  if not (isinstance(magic, int) and magic == _MAGIC):
    raise _Refused("it does not begin as a file that `torch.save` wrote")
  version, machine, found, keys = (pickles.load() for _ in range(4))
  if not (isinstance(version, int) and version == _VERSION):
    raise _Refused("its version is not known")
  if not isinstance(machine, dict) or machine.get("little_endian") is not True:
    raise _Refused("it comes from a machine with the other order of bytes")
  if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)
          and sorted(keys) == sorted(pickles.storages)):
    raise _Refused("its storages are not those of its tensors")
  place = pickles.file.tell()
  for numbers in (pickles.storages[key] for key in keys):
    [size] = struct.unpack_from("<q", content, place)
    if size != numbers.size:
      raise _Refused(f"a storage is said to have {numbers.size:,} elements, and then {size:,}")
    numbers[:] = np.frombuffer(content, numbers.dtype, size, place + 8)
    place += 8 + numbers.nbytes
  return found


class _Machine(PythonMachine):
  """Python's machine in Python: unlike that in C, it takes no memory because a pickle says so.

  `load` runs the next pickle of some content. Its value consists of numbers, strings, tuples,
  lists, dictionaries, and read-only arrays in place of tensors. The numbers [size] of these are in
  `storages`, by key, for the caller to fill; all together are no greater than the file.
  """

  stack: list[Any]

  def __init__(self, content: bytes, num_bytes: int) -> None:
    self.file = io.BytesIO(content[:_LONGEST])
    super().__init__(self.file)
    self.storages: dict[str, np.ndarray] = {}
    self._num_bytes = num_bytes

  def find_class(self, module: str, name: str) -> Any:
    """A dtype for a storage, or one of three functions that make inert values."""
    name = f"{module}.{name}"
    if name not in _KNOWN:
      raise _Refused(f"it asks for {name[:80]!r}, and only tensors are read")
    return _KNOWN[name]

  def persistent_load(self, described: Any) -> np.ndarray:
    """A storage; the same one for the same key."""
    match described:
      case ("storage", np.dtype() as dtype, str(key), _, size, *views) if (
          _are_counts([size]) and not any(view is not None for view in views)):
        pass
      case _:
        raise _Refused("it has a storage of a kind that `torch.save` does not write")
    if key not in self.storages:
      taken = sum(numbers.nbytes for numbers in self.storages.values())
      if taken + size * dtype.itemsize > self._num_bytes:
        raise _Refused(f"a tensor needs {size * dtype.itemsize:,} bytes, and the whole file has "
                       f"{self._num_bytes:,}")
      self.storages[key] = np.empty(size, dtype)
    storage = self.storages[key]
    if (storage.dtype, storage.size) != (dtype, size):
      raise _Refused("a storage in it has several types or sizes")
    return storage

  def _call(self) -> None:
    arguments = self.stack.pop()
    if not isinstance(arguments, tuple):  # A large array would become a much larger list.
      raise _Refused("it calls a function with other than a tuple")
    self.stack[-1] = self.stack[-1](*arguments)

  def _set_items(self, items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
      if not isinstance(key, str):  # The hash of a nested tuple may take years.
        raise _Refused("a dictionary in it has keys that are not strings")
      self.stack[-1][key] = value

  dispatch: ClassVar[dict[int, Callable[[Any], Any]]] = {
      **{code[0]: PythonMachine.dispatch[code[0]] for code in _INSTRUCTIONS},
      pickle.REDUCE[0]: _call,
      pickle.SETITEM[0]: lambda self: self._set_items([self.stack.pop(-2), self.stack.pop()]),
      pickle.SETITEMS[0]: lambda self: self._set_items(self.pop_mark()),
      # Attributes, such as the versions that a state dictionary carries.
      pickle.BUILD[0]: lambda self: self.stack.pop()}


def _tensor(storage: np.ndarray, offset: int, shape: tuple, strides: tuple, *_: Any) -> np.ndarray:
  """The elements of a storage from `offset` on, with strides in elements."""
  if not (isinstance(storage, np.ndarray) and storage.flags.owndata  # A storage, and no tensor.
          and isinstance(shape, tuple) and isinstance(strides, tuple)
          and len(shape) == len(strides) <= 8 and _are_counts([offset, *shape, *strides])):
    raise _Refused("a tensor is not described by counts")
  last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
  # A stride may be greater than the storage, or 0, and the tensor greater: NumPy could not hold it.
  if (min(shape, default=1) < 1 or math.prod(shape) > storage.size or last >= storage.size
      or max(strides, default=0) > storage.size):
    raise _Refused(f"a tensor reaches outside its storage of {storage.size:,} elements")
  return np.lib.stride_tricks.as_strided(
      storage[offset:], shape, [stride * storage.itemsize for stride in strides], writeable=False)


def _are_counts(numbers: list[Any]) -> bool:
  return all(type(number) is int and 0 <= number < 2 ** 63 for number in numbers)


_KNOWN: dict[str, np.dtype | Callable[..., Any]] = {
    "collections.OrderedDict": lambda: {}, "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    **{f"torch.{name}": np.dtype(dtype) for name, dtype in _DTYPES.items()}}
