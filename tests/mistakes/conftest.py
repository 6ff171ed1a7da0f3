"""Parts of the tables of mistakes: a newcomer's folder, and a command line in one process."""

import pathlib
import re
import shutil
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from models.vision.convert import convert
from models.vision.files.image_folder import list_folder
from replicator import app

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = "--gin_file=configs/sngan_digits.gin"
USAGE, FAILED = 2, 1  # Exit statuses.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A working directory with the configs, and data of the wrong kinds."""
  folder = tmp_path_factory.mktemp("newcomer")
  shutil.copytree(ROOT / "configs", folder / "configs")
  (folder / "flat").mkdir()
  for name in ("a.png", "b.png"):
    Image.new("RGB", (32, 32)).save(folder / "flat" / name)
  (folder / "empty" / "cats").mkdir(parents=True)
  (folder / "torn" / "cats").mkdir(parents=True)
  (folder / "torn" / "cats" / "a.jpg").write_bytes(b"not an image")
  with zipfile.ZipFile(folder / "images.zip", "w") as archive:
    archive.write(folder / "flat" / "a.png")
  (folder / "a_file").write_text("")
  make_broken_data(folder)
  return folder


def make_broken_data(folder):
  """Archives, labels and shards that do not fit; each ends a run with one line."""
  (folder / "text.zip").write_text("no archive")
  (folder / "torn.zip").write_bytes((folder / "images.zip").read_bytes()[:-30])
  np.savez_compressed(folder / "packed.npz", images=np.zeros([2, 32, 32, 3], np.uint8))
  labeled = folder / "labeled"
  labeled.mkdir()
  for number in range(1000):
    shutil.copyfile(folder / "flat" / "a.png", labeled / f"{number:03}.png")
  rows = [f"{number:03}.png,{number % 7}\n" for number in range(1000)]
  (labeled / "all.csv").write_text("".join(rows))
  (labeled / "999.csv").write_text("".join(rows[:7] + rows[8:]))
  (labeled / "twice.csv").write_text("".join([*rows, rows[7]]))
  convert(list_folder(str(labeled), "all.csv"), str(folder / "swapped"), 2)
  shutil.copytree(folder / "swapped", folder / "changed")
  first, second = sorted((folder / "swapped").glob("*.npz"))
  shutil.copyfile(first, second)
  shard = folder / "changed" / f"{second.stem}.tfrecord"
  shard.write_bytes(shard.read_bytes()[:-1] + b"!")


@pytest.fixture
def run(folder, monkeypatch, capfd, restored):
  """A function that runs a program with words of a command line; returns status and stderr."""
  monkeypatch.chdir(folder)
  monkeypatch.setattr("sys.argv", ["sngan.py"])
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # The file's name counts.
  monkeypatch.setenv("HOME", str(folder))

  def run(main, words: list[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
      app.run(main, words)
    return end.value.code, capfd.readouterr().err

  return run


def assert_line(found: tuple[int, str], status: int, line: str) -> None:
  """The error is exactly one line; `...` stands for any words."""
  code, err = found
  assert err.startswith("error: ") and err.count("\n") == 1, err
  pattern = ".+".join(map(re.escape, line.split("...")))
  assert re.fullmatch(f"error: {pattern}\n", err), f"{err}\n{line}"
  assert code == status
