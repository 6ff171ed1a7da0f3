"""Reads tensors from a file that `torch.save` wrote, without PyTorch and without running its code.

Both formats are read: the ZIP archive of today, and the stream of five pickles before version 1.6.
A pickle is a program that may call any function. Here it finds three functions, and no others.
"""

import io
import math
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from pickle import _Unpickler as PythonMachine
from typing import Any, ClassVar

import numpy as np

from replicator import UsageError

_DTYPES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2",
           "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
           "ByteStorage": "u1", "BoolStorage": "?"}
_MAGIC = 0x1950A86A20F9469CFC6C  # The first pickle of the older format.
_VERSION = 1001  # The second.
_MOST_BYTES = 4 * 2 ** 20  # The description in an archive may be compressed.


class _Refused(Exception):
  """The reason why a file is not read, in a few words that follow `because`."""


def load(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads the tensors of a file that holds a state dictionary, by name.

  They are read-only views that share the numbers which they share in the file, and may have any
  strides. No tensor takes more memory than the file.

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
        raise _Refused(f"{str(name)[:80]!r} in it is not a tensor: save `model.state_dict()` alone")
    return found
  except Exception as error:  # Damaged files raise many types.
    reason = error if isinstance(error, _Refused) else "it is damaged or incomplete"
    raise UsageError(f"{path} is not read as weights of PyTorch, because {reason}") from error


def _of_archive(content: bytes) -> Any:
  """Reads a ZIP archive: `NAME/data.pkl` describes tensors, `NAME/data/KEY` are numbers."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    names = archive.namelist()
    folders = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")]
    if len(folders) != 1:
      raise _Refused("it is a ZIP archive without the one `data.pkl` that `torch.save` writes")
    byte_order = f"{folders[0]}byteorder"
    if byte_order in names and archive.read(byte_order) != b"little":
      raise _Refused("it comes from a machine with the other order of bytes")
    described = archive.getinfo(f"{folders[0]}data.pkl")
    if described.file_size > _MOST_BYTES:
      raise _Refused(f"the description of its tensors has {described.file_size:,} bytes")
    pickles = _Machine(archive.read(described), len(content))
    found = pickles.load()
    for key, numbers in pickles.storages.items():
      record = archive.getinfo(f"{folders[0]}data/{key}")
      if record.file_size != numbers.nbytes:
        raise _Refused(f"a tensor needs {numbers.nbytes:,} bytes, and its record has "
                       f"{record.file_size:,}")
      numbers[:] = np.frombuffer(archive.read(record), numbers.dtype)
  return found


def _of_stream(content: bytes) -> Any:
  """Reads a file of the older format.

  Five pickles: a magic number, a version, facts about the machine, the description of the tensors,
  and the keys of the storages. Then, in the order of the keys, the size and the numbers of each.
  """
  pickles = _Machine(content, len(content))
  if content[:1] != b"\x80" or pickles.load() != _MAGIC:
    raise _Refused("it does not begin as a file that `torch.save` wrote")
  version, machine, found, keys = (pickles.load() for _ in range(4))
  if version != _VERSION:
    raise _Refused("its version is not known")
  if machine["little_endian"] is not True:
    raise _Refused("it comes from a machine with the other order of bytes")
  if sorted(keys) != sorted(pickles.storages):
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
  """The machine for pickles in Python: that in C takes gigabytes because a damaged file says so.

  `load` runs the next pickle of some content. Its value has read-only arrays in place of tensors.
  The numbers [size] of these are in `storages`, by key, for the caller to fill.
  """

  # Those of protocol 2, which `torch.save` writes; later ones may ask for any memory.
  dispatch: ClassVar[dict[int, Callable[[Any], Any]]] = {
      code: run for code, run in PythonMachine.dispatch.items() if code <= pickle.LONG4[0]}

  def __init__(self, content: bytes, num_bytes: int) -> None:
    self.file = io.BytesIO(content)
    super().__init__(self.file)
    self.storages: dict[str, np.ndarray] = {}
    self._num_bytes = num_bytes

  def find_class(self, module: str, name: str) -> Any:
    """The name of a kind of storage, or one of three functions that make inert values."""
    name = f"{module}.{name}"
    if name not in _KNOWN:
      raise _Refused(f"it asks for {name[:80]!r}, and only tensors are read")
    return _KNOWN[name]

  def persistent_load(self, described: Any) -> np.ndarray:
    """A storage; the same one for the same key."""
    match described:
      case ("storage", str(kind), str(key), _, int(size), *views) if (
          kind in _DTYPES and size >= 0 and not any(view is not None for view in views)):
        dtype = np.dtype(_DTYPES[kind])
      case _:
        raise _Refused("it has a storage of a kind that `torch.save` does not write")
    num_bytes = size * dtype.itemsize
    if num_bytes > self._num_bytes:
      raise _Refused(f"a tensor needs {num_bytes:,} bytes, and the whole file has "
                     f"{self._num_bytes:,}")
    storage = self.storages.setdefault(key, np.empty(size, dtype))
    if (storage.dtype, storage.size) != (dtype, size):
      raise _Refused("a storage in it has several types or sizes")
    return storage


def _tensor(storage: np.ndarray, offset: int, shape: tuple, strides: tuple, *_: Any) -> np.ndarray:
  """The elements of a storage from `offset` on, with strides in elements."""
  if not (isinstance(storage, np.ndarray) and storage.flags.owndata  # A storage, and no tensor.
          and isinstance(shape, tuple) and isinstance(strides, tuple)
          and len(shape) == len(strides) <= 8
          and all(type(n) is int and 0 <= n < 2 ** 63 for n in (offset, *shape, *strides))):
    raise _Refused("a tensor is not described by counts")
  last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
  # A stride may be greater than the storage, or 0, and the tensor greater: NumPy could not hold it.
  if (min(shape, default=1) < 1 or math.prod(shape) > storage.size or last >= storage.size
      or max(strides, default=0) > storage.size):
    raise _Refused(f"a tensor reaches outside its storage of {storage.size:,} elements")
  return np.lib.stride_tricks.as_strided(
      storage[offset:], shape, [stride * storage.itemsize for stride in strides], writeable=False)


_KNOWN: dict[str, str | Callable[..., Any]] = {
    "collections.OrderedDict": OrderedDict, "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    **{f"torch.{kind}": kind for kind in _DTYPES}}
