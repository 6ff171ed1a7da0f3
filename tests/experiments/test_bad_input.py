"""Bad input ends with status 2 and one line that says what to write instead."""

import json
import pathlib

import pytest
from PIL import Image

from experiments.sngan import sngan
from replicator import app
from replicator.console import quiet

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = f"--gin_file={ROOT}/configs/sngan_digits.gin"
CIFAR = f"--gin_file={ROOT}/configs/sngan_cifar10.gin"
CLUSTER = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
  """Gives a function that runs the experiment with flags; it returns exit status and stderr."""
  monkeypatch.setattr(quiet, "drop_native_log", lambda: None)
  monkeypatch.setattr(quiet, "finish", lambda: None)
  monkeypatch.chdir(tmp_path)

  def run(*flags: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
      app.run(sngan, [*flags, f"--workdir={tmp_path}/run"])
    return end.value.code, capfd.readouterr().err

  return run


def multi_worker(task: dict, cluster: dict | None = None) -> str:
  return json.dumps({"cluster": cluster or CLUSTER, "task": task})


@pytest.mark.parametrize(("flag", "expected"), [
    ("Replicator.strategy = 'mirored'", ["mirored", "Did you mean 'mirrored'?"]),
    ("train.global_batch_size = 65", ["65", "4 replicas", "write 64 or 68"]),
    ("train.global_batch_sise = 64", ["global_batch_sise", "Did you mean 'global_batch_size'?"]),
    ("SNGNA.latent_dim = 2", ["SNGNA", "Did you mean 'SNGAN'?"]),
    ("train.steps = 'many'", ["train.steps", "many"]),
    ("train.precision = 'float46'", ["float46", "Did you mean 'float64'?"]),
])
def test_bad_binding(run, flag, expected):
  four = ["--gin_param=Replicator.strategy='mirrored'", "--gin_param=Replicator.logical_cpus=4"]
  assert_one_line(*run(DIGITS, *four, f"--gin_param={flag}"), expected)


def test_missing_gin_file(run):
  assert_one_line(*run("--gin_file=no/such.gin"), ["no/such.gin", "no such file"])


def test_the_error_of_a_misspelled_parameter_has_its_file_and_line(run, tmp_path):
  file = tmp_path / "mine.gin"
  file.write_text(f"include '{ROOT}/configs/sngan_digits.gin'\n\ntrain.stepz = 3\n")
  assert_one_line(*run(f"--gin_file={file}"), [f"{file}:3", "stepz", "Did you mean 'steps'?"])


@pytest.mark.parametrize(("tf_config", "expected"), [
    ("{worker", ["TF_CONFIG is not JSON"]),
    (multi_worker({"type": "worker", "index": 2}), ["task index 2", "out of range"]),
    (multi_worker({"type": "boss", "index": 0}), ["'boss'"]),
    ("", ["TF_CONFIG", "python -m replicator.launch"]),
])
def test_broken_tf_config(run, monkeypatch, tf_config, expected):
  monkeypatch.setenv("TF_CONFIG", tf_config)
  strategy = "--gin_param=Replicator.strategy = 'multi_worker_mirrored'"
  assert_one_line(*run(DIGITS, strategy), expected)


def test_tpu_without_a_tpu(run):
  assert_one_line(*run(DIGITS, f"--gin_file={ROOT}/configs/strategies/tpu.gin",
                       "--gin_param=train.steps = 2000"), ["'tpu'", "no TPU"])


def test_data_folder_that_does_not_exist(run):
  assert_one_line(*run(CIFAR, "--gin_param=ImageFolder.path = 'nowhere'"), ["nowhere"])


def test_data_folder_without_images(run, tmp_path):
  (tmp_path / "empty" / "cat").mkdir(parents=True)
  assert_one_line(*run(CIFAR, "--gin_param=ImageFolder.path = 'empty'"), ["empty"])


def test_the_error_of_a_corrupt_image_has_its_name_and_the_remedy(run, tmp_path):
  folder = tmp_path / "data" / "cat"
  folder.mkdir(parents=True)
  Image.new("RGB", (32, 32)).save(folder / "good.png")
  (folder / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 not an image")
  assert_one_line(*run(CIFAR, "--gin_param=ImageFolder.path = 'data'"),
                  ["bad.jpg", "on_error = 'skip'"])


def assert_one_line(status: int, stderr: str, expected: list[str]) -> None:
  assert status == 2
  lines = [line for line in stderr.splitlines() if line]
  assert len(lines) == 1, stderr
  assert lines[0].startswith("error: ")
  for part in expected:
    assert part in lines[0]
