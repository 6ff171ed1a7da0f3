"""A folder with data of all kinds, and `replicator evaluate` in it."""

import json
import types
import zipfile

from experiments import evaluate
from replicator.app import load
from tests.experiments.evaluate.images import COUNT, Colors, Gan, noise, save

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def place(tmp_path_factory):
  """A folder with images of all kinds, and what only looks like it."""
  place = tmp_path_factory.mktemp("images")
  real, fake = noise(0), noise(1)
  save(place / "real", real)
  save(place / "fake", fake)
  save(place / "copy", real)
  save(place / "jpeg", fake, "jpg")
  save(place / "few", fake[:7])
  save(place / "one", fake[:1])
  save(place / "large", noise(1, size=16))
  save(place / "gray", np.repeat(fake[..., :1], 3, -1))
  unequal = save(place / "unequal", fake)
  Image.fromarray(noise(2, 1, 16)[0]).save(unequal / "010.png")
  broken = save(place / "broken", fake)
  (broken / "005.png").write_bytes(b"no image")
  deep = save(place / "deep", fake)
  Image.fromarray(np.full([8, 8], 40_000, np.int32)).save(deep / "003.png", "TIFF")
  save(place / "black", np.zeros_like(fake))
  for name, other in (("classes", "dog"), ("others", "eel")):
    (place / name).mkdir()
    save(place / name / "cat", fake[:16])
    save(place / name / other, fake[16:])
  names = np.array(["cat", "dog"])
  np.savez(place / "missing.npz", images=fake, labels=np.repeat("cat", COUNT))
  np.savez(place / "numbers.npz", images=fake, labels=np.arange(COUNT) % 2)
  np.savez(place / "shares.npz", images=np.tile(fake, [20, 1, 1, 1]),
           labels=names[np.minimum(np.arange(20 * COUNT) % 10, 1)])
  unlisted = save(place / "unlisted", fake)
  (unlisted / "dataset.json").write_text(json.dumps({"labels": [["000.png", 0]]}))
  (place / "empty").mkdir()
  (place / "file.txt").write_text("a text")
  for name in ("run", "agent"):
    (place / name).mkdir()
    (place / name / "run.json").write_text(json.dumps({
        "program": ["-m", "experiments.gan"], "program_file": "", "argv": [],
        "working_directory": "."}))
    (place / name / "config.gin").write_text("")
  with zipfile.ZipFile(place / "fake.zip", "w") as archive:
    for file in sorted((place / "fake").iterdir()):
      archive.write(file, f"images/{file.name}")
  np.savez(place / "fake.npz", fake)
  np.savez(place / "unit.npz", np.float32(fake / 255))
  np.savez(place / "cast.npz", np.uint8(fake / 255))
  np.savez(place / "first.npz", fake.transpose(0, 3, 1, 2))
  return place


@pytest.fixture
def extractor(monkeypatch):
  found = Colors()
  monkeypatch.setattr(evaluate, "_extractor", lambda flags, source: found)
  return found


@pytest.fixture
def run(place, monkeypatch, capsys, tmp_path):
  """A function that runs the command; returns status, standard output, standard error."""
  monkeypatch.chdir(place)
  for name in ("enable_op_determinism", "enable_tensor_float_32_execution"):
    monkeypatch.setattr(evaluate.tf.config.experimental, name, lambda *arguments: None)
  monkeypatch.setattr(load, "load_run", lambda run, *others: (
      types.SimpleNamespace(module=Gan() if run == "run" else object(), inputs=None), 20))

  def run(words: str) -> tuple[int, str, str]:
    status = evaluate.main([f"--cache={tmp_path / 'cache'}", *words.split()])
    return status, *capsys.readouterr()

  return run
