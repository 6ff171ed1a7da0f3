"""Writes files in the formats of PyTorch by hand, right ones and wrong ones.

Python's own writer of pickles names only functions that exist, and PyTorch is not needed here.
"""

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np


def text(value: str) -> bytes:
  return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
  content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
  return b"\x8a" + bytes([len(content)]) + content


def several(*items: bytes) -> bytes:
  return b"(" + b"".join(items) + b"t"


def named(module: str, name: str) -> bytes:
  return f"c{module}\n{name}\n".encode()


def called(module: str, name: str, *arguments: bytes) -> bytes:
  return named(module, name) + several(*arguments) + b"R"


def dictionary(**items: bytes) -> bytes:
  return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def storage(key: str = "0", size: int = 4) -> bytes:
  return several(text("storage"), named("torch", "FloatStorage"), text(key), text("cpu"),
                 number(size)) + b"Q"


def tensor(source: bytes, offset: int = 0, shape: tuple = (4,), strides: tuple = (1,)) -> bytes:
  return called("torch._utils", "_rebuild_tensor_v2", source, number(offset),
                several(*map(number, shape)), several(*map(number, strides)), b"\x89",
                called("collections", "OrderedDict"))


def archive(program: bytes, compression: int = zipfile.ZIP_STORED, **records: bytes) -> bytes:
  records = records or {"data/0": np.arange(4, dtype="<f4").tobytes()}
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w", compression) as file:
    for name, record in {"data.pkl": b"\x80\2" + program + b".", **records}.items():
      file.writestr(f"archive/{name}", record)
  return content.getvalue()


def stream(program: bytes, size: int = 4, magic: int = 0x1950A86A20F9469CFC6C,
           version: int = 1001, keys: tuple = ("0",)) -> bytes:
  heads = (magic, version, {"little_endian": True})
  return (b"".join(pickle.dumps(head, 2) for head in heads) + b"\x80\2" + program + b"."
          + pickle.dumps(list(keys), 2) + struct.pack("<q", size)
          + np.arange(4, dtype="<f4").tobytes())


def write_weights(path: Path, tensors: dict[str, np.ndarray]) -> None:
  """A file of float32 tensors, as `torch.save` writes a state dictionary."""
  programs, records = {}, {}
  for i, (name, array) in enumerate(tensors.items()):
    strides = tuple(stride // array.itemsize for stride in array.strides)
    programs[name] = tensor(storage(str(i), array.size), 0, array.shape, strides)
    records[f"data/{i}"] = array.tobytes()
  path.write_bytes(archive(dictionary(**programs), **records))
