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

import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from models.metrics.extractors import torch_file
from replicator.errors import UsageError
from tests.models.metrics.torch_writer import (
    archive,
    called,
    dictionary,
    named,
    number,
    storage,
    stream,
    tensor,
    text,
)

FILES = {name: Path(__file__).with_name(f"{name}.pth") for name in ("zip", "stream")}


# ---- What PyTorch wrote -------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_ends_early_is_refused(kind, tmp_path):
  content = FILES[kind].read_bytes()
  for end in (0, 1, 4, 100, len(content) // 2, len(content) - 1):
    assert_refused(tmp_path, content[:end])


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_refused_or_read(kind, tmp_path):
  content = FILES[kind].read_bytes()
  generator = np.random.default_rng(0)
  refused = 0
  for _ in range(300):
    damaged = bytearray(content)
    for place in generator.integers(len(content), size=3):
      damaged[place] = generator.integers(256)
    try:
      read(tmp_path, bytes(damaged))
    except UsageError as error:
      assert "\n" not in str(error)
      refused += 1
  assert refused > 50  # The other changes hit numbers, padding, or what need not be read.


# ---- What an attacker writes --------------------------------------------------------------------


def read(folder: Path, content: bytes) -> dict[str, np.ndarray]:
  path = folder / "weights.pth"
  path.write_bytes(content)
  return torch_file.load(path)


def assert_refused(folder: Path, content: bytes, reason: str = "is not read") -> None:
  """Fails if it is not refused in one line."""
  with pytest.raises(UsageError, match=reason) as caught:
    read(folder, content)
  message = str(caught.value)
  assert "\n" not in message and message.isprintable() and len(message) < 300
  assert "weights.pth" in message


WRITERS = (archive, stream)
GOOD = dictionary(a=tensor(storage()))


def test_what_is_written_here_is_read(tmp_path):
  columns = dictionary(a=tensor(storage(), 1, (2, 1), (2, 1)))
  for write in WRITERS:
    np.testing.assert_array_equal(read(tmp_path, write(GOOD))["a"], np.arange(4.0))
    np.testing.assert_array_equal(read(tmp_path, write(columns))["a"], [[1], [3]])


@pytest.mark.parametrize("program", [
    called("os", "system", text("touch ran")), called("builtins", "eval", text("open('ran', 'w')")),
    named("builtins", "exec"), called("torch.nn", "Linear", number(1)),
    named("os", "sys\x1b[31mtem")])
def test_code_is_not_run(program, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for write in WRITERS:
    assert_refused(tmp_path, write(dictionary(a=program)), "it asks for .* only tensors are read")
  assert not os.path.exists("ran")


def test_a_pickle_of_python_that_runs_code_is_refused(tmp_path, monkeypatch):
  class Hostile:
    def __reduce__(self):
      return os.system, ("touch ran",)

  monkeypatch.chdir(tmp_path)
  for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    program = pickle.dumps({"a": Hostile()}, protocol)
    assert_refused(tmp_path, program)
    assert_refused(tmp_path, archive(program))
  assert not os.path.exists("ran")


HUGE = 2 ** 62


@pytest.mark.parametrize("program, reason", [
    (tensor(storage(size=HUGE), shape=(HUGE,)), "the whole file has"),
    (tensor(storage(size=5)), "its record has 16|5 elements, and then 4"),
    (tensor(storage(size=-1)), "a kind"), (tensor(storage(view=text("view"))), "a kind"),
    (tensor(storage(), shape=(5,)), "outside"), (tensor(storage(), offset=1), "outside"),
    (tensor(storage(), offset=3, strides=(-1,)), "counts"),
    (tensor(storage(), shape=(1,), strides=(HUGE,)), "outside"),
    (tensor(storage(), shape=(2 ** 31, 2 ** 31), strides=(0, 0)), "outside"),
    (tensor(storage(), shape=(0, HUGE), strides=(1, 1)), "outside"),
    (tensor(storage(), offset=2 ** 80), "counts"),
    (tensor(storage(), strides=(1, 1)), "counts"), (tensor(number(3)), "counts"),
    (tensor(tensor(storage(), 3, (1,), (4,))), "counts"),  # A view of a view might reach further.
    (tensor(storage(key="1")), "damaged|storages")])
def test_bad_tensors_are_refused(program, reason, tmp_path):
  for write in WRITERS:
    assert_refused(tmp_path, write(dictionary(a=program)), reason)


@pytest.mark.parametrize("program, reason", [
    (b"]", "no dictionary"), (b"}", "no tensors"), (dictionary(a=number(3)), "'a' .* not a tensor"),
    (b"X" + b"\xff" * 4, "damaged"), (b"\x96" + b"\0\0\0\0\0\1\0\0", "damaged"),  # A terabyte.
    (b"R", "damaged"), (b"h\7", "damaged"), (b"}(" + text("a") + b"u", "damaged")])
def test_bad_programs_are_refused(program, reason, tmp_path):
  assert_refused(tmp_path, archive(program), reason)
  assert_refused(tmp_path, stream(program, size=0, keys=()), reason)


def test_a_huge_place_in_the_memory_takes_none(tmp_path):
  tracemalloc.start()  # Python's machine in C would take 32 GB.
  tensors = read(tmp_path, archive(GOOD + b"r" + b"\xff" * 4))
  assert list(tensors) == ["a"] and tracemalloc.get_traced_memory()[1] < 2 ** 20
  tracemalloc.stop()


# ---- The archive --------------------------------------------------------------------------------


def test_an_archive_of_something_else_is_refused(tmp_path):
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w") as file:
    file.writestr("word/document.xml", "<text/>")
  assert_refused(tmp_path, content.getvalue(), r"data\.pkl")
  assert_refused(tmp_path, archive(GOOD, **{"data/0": bytes(16), "other/data.pkl": b"N."}),
                 r"data\.pkl")


def test_the_other_order_of_bytes_is_refused(tmp_path):
  records = {"data/0": np.arange(4, dtype=">f4").tobytes(), "byteorder": b"big"}
  assert_refused(tmp_path, archive(GOOD, **records), "order of bytes")
  assert_refused(tmp_path, stream(GOOD, little=False), "order of bytes")


def test_a_huge_description_is_not_unpacked(tmp_path):
  assert_refused(tmp_path, archive(GOOD + bytes(2 ** 22)), "description of its tensors has 4,19")


# ---- The stream ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content, reason", [
    (stream(GOOD, magic=1), "does not begin"), (stream(GOOD, version=1000), "version"),
    (stream(GOOD, size=3), "4 elements, and then 3"), (stream(GOOD, size=-1), "and then -1"),
    (stream(GOOD, keys=("0", "1")), "storages"), (stream(GOOD, keys=(0,)), "storages"),
    (b"\x93NUMPY\1\0", "does not begin"), (b"", "does not begin"),
    (stream(dictionary(a=tensor(storage()), b=tensor(storage(size=3), shape=(3,)))), "several")])
def test_a_stream_that_is_not_right_is_refused(content, reason, tmp_path):
  assert_refused(tmp_path, content, reason)


def test_no_file(tmp_path):
  with pytest.raises(UsageError, match=r"none.pth cannot be read \(No such file or directory\)"):
    torch_file.load(tmp_path / "none.pth")
  with pytest.raises(UsageError, match="Is a directory"):
    torch_file.load(tmp_path)
