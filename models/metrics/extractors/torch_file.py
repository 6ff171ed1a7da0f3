"""Reads tensors from a file that `torch.save` wrote, without PyTorch and without running its code.

Both formats are read: the ZIP archive of today, and the stream of five pickles before version 1.6.
"""

import io
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from models.metrics.extractors import torch_pickle
from models.metrics.extractors.torch_pickle import Refused, Storage, View
from replicator import UsageError

_MAGIC = 0x1950A86A20F9469CFC6C  # The first pickle of the older format.
_VERSION = 1001  # The second.


def load(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """The tensors of a file that holds a state dictionary, by name.

  They are read-only views that share the numbers which they share in the file, and may have any
  strides. The memory is at most twice the size of the file, whatever the file says: sizes and
  offsets are checked before anything is read by them, and a record that is compressed is refused.

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
    return dict(_of_archive(content) if content[:4] == b"PK\3\4" else _of_stream(content))
  except Refused as refusal:
    raise UsageError(f"{path} is not read as weights of PyTorch, because {refusal}") from refusal


def _of_archive(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
  """The tensors of a ZIP archive: `NAME/data.pkl` describes them, `NAME/data/KEY` are numbers."""
  try:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
      _check_sizes(archive, len(content))
      folder = _folder(archive)
      described = torch_pickle.read(io.BytesIO(archive.read(f"{folder}data.pkl")))
      views = _named_views(described)
      arrays = {storage: _record(archive, f"{folder}data/{storage.key}", storage)
                for storage in _storages(views)}
  except (zipfile.BadZipFile, struct.error, EOFError, LookupError, OSError, OverflowError,
          RuntimeError, ValueError) as error:  # As `zipfile` raises them for damaged files.
    raise Refused("its ZIP archive is damaged or incomplete") from error
  return ((name, view.of(arrays[view.storage])) for name, view in views.items())


def _check_sizes(archive: zipfile.ZipFile, num_bytes: int) -> None:
  records = archive.infolist()
  if any(record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size
         for record in records):
    raise Refused("its records are compressed, which `torch.save` does not do")
  if sum(record.file_size for record in records) > num_bytes:
    raise Refused("its records overlap: together they are longer than the file")


def _folder(archive: zipfile.ZipFile) -> str:
  """What the names of all records begin with, such as `archive/`."""
  names = archive.namelist()
  folders = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")]
  if len(folders) != 1:
    raise Refused("it is a ZIP archive without the one `data.pkl` that `torch.save` writes")
  byte_order = f"{folders[0]}byteorder"
  if byte_order in names and archive.read(byte_order) != b"little":
    raise Refused("it comes from a machine with the other order of bytes")
  return folders[0]


def _record(archive: zipfile.ZipFile, name: str, storage: Storage) -> np.ndarray:
  try:
    num_bytes = archive.getinfo(name).file_size
  except KeyError:
    raise Refused(f"it has no record {name[:80]!r}") from None
  if num_bytes != storage.num_bytes:
    raise Refused(f"a tensor needs {storage.num_bytes:,} bytes, and its record has {num_bytes:,}")
  return np.frombuffer(archive.read(name), storage.dtype)


def _of_stream(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
  """The tensors of the older format.

  Five pickles: a magic number, a version, facts about the machine, the description of the tensors,
  and the keys of the storages. Then, in the order of the keys, the size and the numbers of each.
  """
  file = io.BytesIO(content)
  if not content.startswith(b"\x80") or torch_pickle.read(file) != _MAGIC:
    raise Refused("it does not begin as a file that `torch.save` wrote")
  if torch_pickle.read(file) != _VERSION:
    raise Refused("its version is not known")
  machine = torch_pickle.read(file)
  if not isinstance(machine, dict) or machine.get("little_endian") is not True:
    raise Refused("it comes from a machine with the other order of bytes")
  views = _named_views(torch_pickle.read(file))
  keys = torch_pickle.read(file)
  by_key = {storage.key: storage for storage in _storages(views)}
  if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)
          and sorted(keys) == sorted(by_key)):
    raise Refused("its storages are not those of its tensors")
  arrays = {by_key[key]: _next_storage(file, by_key[key], len(content)) for key in keys}
  return ((name, view.of(arrays[view.storage])) for name, view in views.items())


def _next_storage(file: io.BytesIO, storage: Storage, end: int) -> np.ndarray:
  size = int.from_bytes(file.read(8), "little", signed=True)
  left = end - file.tell()
  if left < storage.num_bytes:
    raise Refused(f"a tensor needs {storage.num_bytes:,} bytes, and {left:,} are left: "
                  "it is incomplete")
  if size != storage.size:
    raise Refused(f"a storage is said to have {storage.size:,} elements, and then {size:,}")
  return np.frombuffer(file.read(storage.num_bytes), storage.dtype)


def _named_views(described: Any) -> dict[str, View]:
  if not isinstance(described, dict) or not described:
    raise Refused("it is no dictionary, or has no tensors: save `model.state_dict()`")
  for name, value in described.items():
    if not isinstance(value, View):
      raise Refused(f"{name[:80]!r} in it is not a tensor: save `model.state_dict()` alone")
  return described


def _storages(views: dict[str, View]) -> set[Storage]:
  storages = {view.storage for view in views.values()}
  if len({storage.key for storage in storages}) != len(storages):
    raise Refused("a storage in it has several types or sizes")
  return storages
