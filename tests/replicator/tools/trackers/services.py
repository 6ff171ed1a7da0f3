"""A process of a run that a real service tracks: `python services.py SERVICE WORKDIR ...`.

With `follow FIRST LAST KILL` it sends what was logged after step FIRST, up to step LAST. It kills
itself at the KILL-th call of `log`; if that does not come, the run is finished. With `read` it
prints what the service has.
"""

import json
import math
import os
import pathlib
import random
import signal
import struct
import sys

from replicator.console import status  # noqa: F401 - It imports Rich, which draws a number.
from replicator.tools.trackers import sync
from replicator.tools.trackers.services import MLflow, Trackio, WandB

import numpy as np


def make(service: str):
  return {"mlflow": lambda: MLflow("sqlite:///mlflow.db"), "wandb": WandB,
          "trackio": Trackio}[service]()


def follow(service: str, workdir: pathlib.Path, first: int, last: int, kill: int) -> None:
  tracker, calls = make(service), 0
  log = tracker.log

  def counted(*arguments) -> None:
    nonlocal calls
    log(*arguments)
    calls += 1
    if calls == kill:
      os.kill(os.getpid(), signal.SIGKILL)

  tracker.log = counted
  draws = random.getstate(), np.random.get_state()[2]
  followers = sync.Followers([tracker], workdir, first, print)
  followers.begin()
  followers.settle(last)
  followers.end("finished", seconds=300.0)  # Not every machine is fast.
  assert (random.getstate(), np.random.get_state()[2]) == draws  # The run may use them.


def read(service: str, workdir: pathlib.Path) -> dict:
  """The scalars by step, the number of pictures, the group, a value of the configuration."""
  run_id = json.loads((workdir / "trackers.json").read_text()).popitem()[1]
  return {"mlflow": read_mlflow, "wandb": read_wandb, "trackio": read_trackio}[service](
      workdir, run_id)


def read_mlflow(workdir: pathlib.Path, run_id: str) -> dict:
  import mlflow
  client = mlflow.MlflowClient("sqlite:///mlflow.db")
  experiment = client.get_experiment_by_name("sngan").experiment_id
  (run,) = client.search_runs([experiment])
  assert run.data.tags["replicator.id"] == run_id
  assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["config.gin", "samples"]
  points = [(metric.step, name, metric.value) for name in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, name)]
  return {"points": points, "pictures": len(client.list_artifacts(run.info.run_id, "samples")),
          "group": run.data.tags["group"], "status": run.info.status,
          "steps": int(run.data.params["train.steps"])}


def read_wandb(workdir: pathlib.Path, run_id: str) -> dict:
  (folder,) = (workdir / "wandb").glob("offline-run-*")
  points, pictures, found = [], 0, {}
  for record in wandb_records(folder / f"run-{run_id}.wandb"):
    kind = record.WhichOneof("record_type")
    if kind == "history":
      step = record.history.step.num
      values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item}
      pictures += "samples/path" in values
      points += [(step, name, value) for name, value in values.items()
                 if not name.startswith(("_", "samples/"))]
    elif kind == "run":
      found["group"] = record.run.run_group
      found["steps"] = next(json.loads(update.value_json) for update in record.run.config.update
                            if update.key == "train.steps")
    elif kind == "exit":
      found["status"] = record.exit.exit_code
  return {"points": points, "pictures": pictures, **found}


def wandb_records(path: pathlib.Path):
  """The records of an offline run: blocks of 32 KiB with parts of records, as LevelDB's logs."""
  from wandb.proto.wandb_internal_pb2 import Record
  data, at, whole = path.read_bytes(), 7, b""
  while at + 7 <= len(data):
    if (left := 32768 - at % 32768) < 7:
      at += left
      continue
    _, length, kind = struct.unpack("<IHB", data[at:at + 7])
    whole += data[at + 7:at + 7 + length]
    at += 7 + length
    if kind in (1, 4):  # A whole record, or the last part of one.
      yield Record.FromString(whole)
      whole = b""


def read_trackio(workdir: pathlib.Path, run_id: str) -> dict:
  import trackio
  from trackio.sqlite_storage import SQLiteStorage
  (run,) = trackio.Api().runs("sngan")
  assert run.name == f"{workdir.name}-{run_id}"
  rows = SQLiteStorage.get_logs("sngan", run.name)
  points = [(row["step"], name, value) for row in rows for name, value in row.items()
            if name not in ("step", "timestamp", "samples")]
  return {"points": points, "pictures": sum("samples" in row for row in rows),
          "group": run.config["_Group"], "steps": run.config["train.steps"],
          "status": [alert["title"] for alert in run.alerts()]}


def as_text(value: object) -> object:
  return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
  service, folder, what, *numbers = sys.argv[1:]
  if what == "read":
    found = read(service, pathlib.Path(folder))
    found["points"] = [(step, name, as_text(value)) for step, name, value in found["points"]]
    print(json.dumps(found))
  else:
    follow(service, pathlib.Path(folder), *map(int, numbers))
