"""Reads tensors from `torch.save` files, without PyTorch and without running code from them.

It reads both formats: the current ZIP archive, and the stream of five pickles before version 1.6. A
pickle is a program that may call any function. Here it can call only three.
"""

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from pickle import _Unpickler as PythonMachine
from typing import Any, ClassVar

from replicator import UsageError
from replicator.errors import first_line

import numpy as np

_DTYPES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2",
           "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
           "ByteStorage": "u1", "BoolStorage": "?"}
_BEGIN = (0x1950A86A20F9469CFC6C, 1001)  # The first two pickles of the older format.


def load(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads the tensors of a file that contains a state dictionary, by name.

  They are read-only views that share storage as in the file, and may have any strides. No tensor
  takes more memory than the file.

  Raises:
    UsageError: there is no such file, it is damaged, or it contains anything other than named
      tensors of booleans, integers, or floats of 16, 32 or 64 bits.
  """
  try:
    content = Path(path).read_bytes()
  except OSError as error:
    raise UsageError(f"{path} cannot be read ({error.strerror}): set the path of a file of weights "
                     "saved by `torch.save`") from error
  try:
    found = _of_archive(content) if content[:4] == b"PK\3\4" else _of_stream(content)
    if not found or not all(isinstance(value, np.ndarray) for value in found.values()):
      raise ValueError("it is empty, or holds something other than tensors")
    return found
  except Exception as error:  # Damaged files raise many types.
    raise UsageError(f"{path} cannot be read as PyTorch weights ({first_line(error)[:100]}): use a "
                     "complete file of `model.state_dict()`") from error


def _of_archive(content: bytes) -> Any:
  """Reads a ZIP archive: `NAME/data.pkl` describes tensors, `NAME/data/KEY` has their numbers."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    if sum(each.file_size for each in archive.infolist()) > len(content):
      raise ValueError("it is compressed, which `torch.save` never does")
    folders = [name.removesuffix("data.pkl") for name in archive.namelist()
               if name.endswith("/data.pkl")]
    if len(folders) != 1:
      raise ValueError("it does not have the one `data.pkl` that `torch.save` writes")
    pickles = _Machine(archive.read(f"{folders[0]}data.pkl"), len(content))
    found = pickles.load()
    for key, numbers in pickles.storages.items():
      _fill(numbers, archive.read(f"{folders[0]}data/{key}"))
  return found


def _of_stream(content: bytes) -> Any:
  """Reads a file of the older format.

  It has five pickles: a magic number, a version, facts about the machine, the description of the
  tensors, and the keys of the storages. The size and the numbers of each storage follow, in key
  order.
  """
  pickles = _Machine(content, len(content))
  if content[:1] != b"\x80" or (pickles.load(), pickles.load()) != _BEGIN:
    raise ValueError("it does not begin like a file saved by `torch.save`")
  _, found, keys = (pickles.load() for _ in range(3))
  if sorted(keys) != sorted(pickles.storages):
    raise ValueError("its storages do not match its tensors")
  place = pickles.file.tell()
  for numbers in (pickles.storages[key] for key in keys):
    [size] = struct.unpack_from("<q", content, place)
    end = place + 8 + size * numbers.itemsize
    _fill(numbers, content[place + 8:end])
    place = end
  return found


def _fill(numbers: np.ndarray, content: bytes) -> None:
  if len(content) != numbers.nbytes:
    raise ValueError(f"a tensor needs {numbers.nbytes:,} bytes, but its record has "
                     f"{len(content):,}")
  numbers[:] = np.frombuffer(content, numbers.dtype)


class _Machine(PythonMachine):
  """The pickle machine in Python, because a damaged file can make the C one allocate gigabytes.

  `load` runs the next pickle of the content. Its value has read-only arrays instead of tensors.
  Their numbers [size] are in `storages`, by key, for the caller to fill.
  """

  # Protocol 2, which `torch.save` writes; later ones can allocate any amount of memory.
  dispatch: ClassVar[dict[int, Callable[[Any], Any]]] = {
      code: run for code, run in PythonMachine.dispatch.items() if code <= pickle.LONG4[0]}

  def __init__(self, content: bytes, num_bytes: int) -> None:
    self.file = io.BytesIO(content)
    super().__init__(self.file)
    self.storages: dict[str, np.ndarray] = {}
    self._num_bytes = num_bytes

  def find_class(self, module: str, name: str) -> Any:
    """Returns the name of a storage type, or one of three harmless functions."""
    name = f"{module}.{name}"
    if name not in _KNOWN:
      raise ValueError(f"it refers to {name!r:.50}, but only tensors are read")
    return _KNOWN[name]

  def persistent_load(self, described: Any) -> np.ndarray:
    """Returns a storage; the same one for the same key."""
    _, kind, key, _, size, *_ = described
    dtype = np.dtype(_DTYPES[kind])
    if not 0 <= size * dtype.itemsize <= self._num_bytes:
      raise ValueError("a tensor is larger than the file")
    return self.storages.setdefault(key, np.empty(size, dtype))


def _tensor(storage: np.ndarray, offset: int, shape: tuple, strides: tuple, *_: Any) -> np.ndarray:
  """Returns a view of a storage from `offset`, with strides in elements."""
  # In Python's integers, since NumPy's can overflow.
  last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
  if min(shape, default=1) < 1 or min(offset, *strides, 0) < 0 or last >= storage.size:
    raise ValueError("a tensor extends beyond its storage")
  size = storage.itemsize
  tensor = np.ndarray(shape, storage.dtype, storage.data, offset * size,
                      [stride * size for stride in strides])
  tensor.flags.writeable = False
  return tensor


_KNOWN: dict[str, str | Callable[..., Any]] = {
    "collections.OrderedDict": OrderedDict, "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    **{f"torch.{kind}": kind for kind in _DTYPES}}
