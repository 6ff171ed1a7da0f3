"""The reader of PyTorch's files: what it reads, and what it refuses.

`zip.pth` and `stream.pth` were written by PyTorch 2.13.0:

  state = torch.nn.BatchNorm1d(2).state_dict()
  table = torch.arange(12.0).reshape(3, 4)
  state["table"], state["column"], state["turned"] = table, table[:, 1], table.T
  state["half"] = torch.tensor([[1.5], [-2.0]], dtype=torch.float16)
  state["double"] = torch.tensor(1 / 3, dtype=torch.float64)
  state["flags"] = torch.tensor([True, False])
  state["parameter"] = torch.nn.Parameter(torch.tensor([7.0]))
  torch.save(state, "zip.pth")
  torch.save(state, "stream.pth", _use_new_zipfile_serialization=False)
"""

import os
import pickle
import re
import tracemalloc
import zipfile
from pathlib import Path

from models.metrics.extractors import torch_file
from replicator import UsageError
from tests.models.metrics.torch_writer import (
  archive,
  called,
  dictionary,
  number,
  storage,
  stream,
  tensor,
  text,
)
from tests.programs.refusals import refusal

import numpy as np
import pytest

FILES = {name: Path(__file__).with_name(f"{name}.pth") for name in ("zip", "stream")}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_pytorch_are_read(kind):
  tensors = torch_file.load(FILES[kind])
  table = np.arange(12, dtype=np.float32).reshape(3, 4)
  expected = {
      "weight": np.ones(2, np.float32), "bias": np.zeros(2, np.float32),
      "running_mean": np.zeros(2, np.float32), "running_var": np.ones(2, np.float32),
      "num_batches_tracked": np.array(0), "table": table, "column": table[:, 1], "turned": table.T,
      "half": np.array([[1.5], [-2]], np.float16), "double": np.array(1 / 3),
      "flags": np.array([True, False]), "parameter": np.array([7], np.float32)}
  assert list(tensors) == list(expected)
  for name, array in expected.items():
    assert tensors[name].dtype == array.dtype
    np.testing.assert_array_equal(tensors[name], array)
  for name in ("column", "turned"):
    assert np.shares_memory(tensors["table"], tensors[name])
    assert not tensors[name].flags.writeable


def read(folder: Path, content: bytes) -> dict[str, np.ndarray]:
  path = folder / "weights.pth"
  path.write_bytes(content)
  return torch_file.load(path)


def assert_refused(folder: Path, content: bytes, reason: str = "") -> None:
  line = refusal(read, folder, content)
  assert re.search(rf"weights.pth cannot be read as PyTorch weights \(.*{reason}", line)
  assert line.isprintable() and len(line) < 300


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_off_or_damaged_is_refused_or_read(kind, tmp_path):
  content, generator, refused = FILES[kind].read_bytes(), np.random.default_rng(0), 0
  for end in (0, 1, 4, 100, len(content) // 2, len(content) - 1):
    assert_refused(tmp_path, content[:end])
  for _ in range(300):
    damaged = bytearray(content)
    for place in generator.integers(len(content), size=3):
      damaged[place] = generator.integers(256)
    try:
      read(tmp_path, bytes(damaged))
    except UsageError:
      refused += 1
  assert refused > 50  # The other changes hit numbers, padding, or what need not be read.


WRITERS = (archive, stream)
GOOD = dictionary(a=tensor(storage()))


class Hostile:
  def __reduce__(self):
    return os.system, ("touch ran",)


def test_code_is_not_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for names in (("os", "system"), ("torch.nn", "Linear"), ("os", "sys\x1b[31mtem")):
    program = called(*names, text("touch ran"))
    for write in WRITERS:
      assert_refused(tmp_path, write(dictionary(a=program)), "it refers to .* only tensors are")
  for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    program = pickle.dumps({"a": Hostile()}, protocol)
    assert_refused(tmp_path, program)
    assert_refused(tmp_path, archive(program))
  assert not os.path.exists("ran")


HUGE = 2 ** 62


@pytest.mark.parametrize("program, reason", [
    (tensor(storage(size=HUGE), shape=(HUGE,)), "larger than the file"),
    (tensor(storage(size=5)), "a tensor needs 20 bytes, but its record has"),
    (tensor(storage(size=-1)), "larger"),
    (tensor(storage(), shape=(5,)), "beyond"), (tensor(storage(), offset=1), "beyond"),
    (tensor(storage(), offset=3, strides=(-1,)), "beyond"),
    (tensor(storage(), shape=(5,), strides=(HUGE,)), "beyond"),  # It overflows to 0.
    (tensor(storage(), shape=(0, HUGE), strides=(1, 1)), "beyond"),
    (tensor(storage(), strides=(1, 1)), ""), (tensor(number(3)), ""),
    (tensor(tensor(storage(), 3, (1,), (4,))), "beyond"),  # A view of a view might reach further.
    (tensor(storage(key="1")), ""), (number(3), "other than tensors|storages")])
def test_bad_tensors_are_refused(program, reason, tmp_path):
  for write in WRITERS:
    assert_refused(tmp_path, write(dictionary(a=program)), reason)


@pytest.mark.parametrize("content, reason", [
    (archive(b"}"), "it is empty"), (archive(GOOD, other=b""), "archive/data/0"),
    (archive(b"\x96" + b"\0\0\0\0\0\1\0\0"), ""),  # A terabyte.
    (archive(GOOD, **{"data/0": bytes(16), "other/data.pkl": b"N."}), "the one `data.pkl`"),
    (stream(GOOD, magic=1), "does not begin"), (stream(GOOD, version=1000), "does not begin"),
    (stream(GOOD, size=3), "its record has 12"), (stream(GOOD, size=-1), "its record has"),
    (stream(GOOD, keys=("0", "1")), "storages"), (b"\x93NUMPY\1\0", "does not begin")])
def test_another_content_is_refused(content, reason, tmp_path):
  assert_refused(tmp_path, content, reason)


def test_what_asks_for_memory_gets_none(tmp_path):
  assert_refused(tmp_path, archive(GOOD + bytes(2 ** 22), zipfile.ZIP_DEFLATED), "it is compressed")
  tracemalloc.start()  # Python's machine in C would take 32 GB.
  tensors = read(tmp_path, archive(GOOD + b"r" + b"\xff" * 4))
  assert list(tensors) == ["a"] and tracemalloc.get_traced_memory()[1] < 2 ** 20
  tracemalloc.stop()


def test_no_file(tmp_path):
  assert "none.pth cannot be read (No such file or directory)" in refusal(
      torch_file.load, tmp_path / "none.pth")
  assert "Is a directory" in refusal(torch_file.load, tmp_path)
