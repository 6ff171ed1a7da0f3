"""Images that are decoded as they are drawn: the same ones whatever happens to a run."""

import multiprocessing
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from models.vision import convert
from replicator.training.inputs import InputContext, batches
from tests.programs import drawn_images
from tests.programs.logs import rows

ROOT = pathlib.Path(__file__).parents[3]
BATCH, SEED, CLASSES = 12, 5, 31

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images(tmp_path_factory):
  """A folder with `folder` and `shards` of 31 photos of different sizes, each of its own class."""
  root, noise = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
  for number in range(CLASSES):
    file = root / "folder" / f"{number:02}" / "a.jpg"
    file.parent.mkdir(parents=True)
    pixels = noise.integers(0, 256, [5, 7, 3], np.uint8)
    Image.fromarray(pixels).resize((30 + number, 50 - number)).save(file)
  convert.main([str(root / "folder"), str(root / "shards"), "--shards=3"])
  return root


@pytest.fixture(scope="module")
def expected(images):
  """The examples of a run at steps 1, 2, ...: scalars by name."""
  source, steps = drawn_images.FolderAndShards(str(images)), []
  for batch in batches(source, InputContext(BATCH, seed=SEED)).take(100):
    steps.append({})
    for name, examples in batch.items():
      sums = drawn_images.checksums(examples["image"]).numpy()
      for row, label in enumerate(examples["label"].numpy()):
        steps[-1] |= {f"{name}/{row}/class": label, f"{name}/{row}/checksum": sums[row]}
  return steps


def words(images, workdir, steps, *bindings):
  bindings = (f"see_images.path = '{images}'", f"train.global_batch_size = {BATCH}",
              f"train.seed = {SEED}", f"train.steps = {steps}", "train.log_every = 1",
              "train.eval_every = 0", "train.precision = 'float64'", *bindings)
  return [f"--workdir={workdir}", *(f"--gin_param={binding}" for binding in bindings)]


@pytest.fixture(scope="module")
def start():
  """A function that starts a run in a process of its own, without loading TensorFlow again."""
  server = multiprocessing.get_context("forkserver")
  server.set_forkserver_preload([drawn_images.__name__])

  def start(arguments):
    process = server.Process(target=drawn_images.run, args=(arguments,))
    process.start()
    return process
  return start


def assert_as_expected(workdir, expected):
  found = rows(workdir)
  assert [row["step"] for row in found] == list(range(1, len(expected) + 1))
  for row, seen in zip(found, expected, strict=True):
    # The mean of three equal numbers may be rounded.
    assert {name: round(row[name], 3) for name in seen} == seen


def test_both_sources_show_every_image_once_an_epoch_and_never_the_same_way(expected):
  for name in ("folder", "shards"):
    shown = [(seen[f"{name}/{row}/class"], seen[f"{name}/{row}/checksum"])
             for seen in expected for row in range(BATCH)]
    for epoch in range(0, len(shown) - CLASSES, CLASSES):
      assert len({label for label, _ in shown[epoch:epoch + CLASSES]}) == CLASSES
    assert len(set(shown)) > 0.99 * len(shown)
  assert all(seen[f"folder/{row}/{what}"] == seen[f"shards/{row}/{what}"]
             for seen in expected for row in range(BATCH) for what in ("class", "checksum"))


def test_a_run_that_is_killed_five_times_sees_the_same(images, expected, start, tmp_path):
  moment, arguments = random.Random(0), words(images, tmp_path, 60, "train.checkpoint_every = 2")
  log = tmp_path / "metrics.jsonl"
  count = lambda: log.read_bytes().count(b"\n") if log.exists() else 0
  for _ in range(5):
    until = count() + moment.randint(1, 10)
    process = start(arguments)
    while process.is_alive() and count() < until:
      time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
  process = start(arguments)
  process.join()
  assert process.exitcode == 0
  assert_as_expected(tmp_path, expected[:60])


def test_replicas_see_the_same_global_batches(images, expected, start, tmp_path):
  process = start(words(images, tmp_path, 6, "Replicator.strategy = 'mirrored'",
                        "Replicator.logical_cpus = 4"))
  process.join()
  assert process.exitcode == 0
  assert_as_expected(tmp_path, expected[:6])


def test_processes_see_the_same_global_batches(images, expected, tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", "replicator.launch", "--workers=3", "--", sys.executable,
       "-m", drawn_images.__name__,
       *words(images, tmp_path, 6, "Replicator.strategy = 'multi_worker_mirrored'")],
      cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  assert_as_expected(tmp_path, expected[:6])
