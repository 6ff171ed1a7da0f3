"""A process of a run that a real service tracks: `python services.py SERVICE WORKDIR ...`.

With `kill N` it kills itself at the N-th call of `send`; with `resume` or `roll_back` it does that,
and the run is finished. With `read` it prints what the service has.
"""

import itertools
import json
import math
import os
import pathlib
import random
import signal
import struct
import sys

from replicator.console import status  # noqa: F401 - It imports Rich, which draws a number.
from replicator.tools.trackers.outbox import Line
from replicator.tools.trackers.services import MLflow, Trackio, WandB
from tests.programs.processes import wait_until
from tests.replicator.tools.trackers.conftest import Process, Workdir

import numpy as np


def make(service: str):
  return {"mlflow": lambda: MLflow("sqlite:///mlflow.db"), "wandb": WandB,
          "trackio": Trackio}[service]()


def killed(service: str, folder: pathlib.Path, kill: int) -> None:
  """Logs up to step 26, and kills itself at a call of `send`."""
  tracker, calls = make(service), itertools.count(1)
  send = tracker.send

  def counted(line: Line) -> None:
    send(line)
    if next(calls) == kill:
      os.kill(os.getpid(), signal.SIGKILL)

  tracker.send = counted
  process = Process(Workdir(folder), tracker)
  process.log(0, 26)
  tracker._outbox._thread.join()


def resumed(service: str, folder: pathlib.Path) -> None:
  """Goes on from step 20 up to step 40."""
  process = Process(Workdir(folder), make(service), step=20)
  process.log(22, 26)
  go_on(process, loss=float("nan"))


def rolled_back(service: str, folder: pathlib.Path) -> None:
  """Goes back to step 20 when it has sent step 26."""
  tracker = make(service)
  process = Process(Workdir(folder), tracker)
  process.log(0, 26)
  wait_until(lambda: tracker._outbox._has == 26)
  process.roll_back(20)
  process.log(22, 26, loss=0.25)
  go_on(process, loss=0.25)


def go_on(process: Process, loss: float) -> None:
  """Logs up to step 40, a histogram and a text at step 28, and ends."""
  (tracker,) = process.trackers
  process.writer.histograms(28, {"weights/w": np.arange(64.0)})
  process.writer.text(28, {"note": "a line"})
  process.log(28, 40, loss)
  tracker._outbox.end("finished", seconds=300.0)  # Not every machine is fast.
  print(*process.said)


def read(service: str, workdir: pathlib.Path) -> dict:
  """The scalars by step, the numbers of pictures and of records, the group, a setting, the status.

  They are those of the record that the workdir names.
  """
  run_id = json.loads((workdir / "trackers.json").read_text()).popitem()[1]["id"]
  return {"mlflow": read_mlflow, "wandb": read_wandb, "trackio": read_trackio}[service](
      workdir, run_id)


def read_mlflow(workdir: pathlib.Path, run_id: str) -> dict:
  import mlflow
  client = mlflow.MlflowClient("sqlite:///mlflow.db")
  experiment = client.get_experiment_by_name("sngan").experiment_id
  runs = client.search_runs([experiment])
  (run,) = (run for run in runs if run.data.tags["replicator.id"] == run_id)
  assert [file.path for file in client.list_artifacts(run.info.run_id)] == [
      "config.gin", "histograms", "samples", "text"]
  media = {}
  for kind in ("histograms", "text"):
    path = client.download_artifacts(run.info.run_id, f"{kind}/step-00000028.json")
    media.update(json.loads(pathlib.Path(path).read_text()))
  points = [(metric.step, name, metric.value) for name in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, name)]
  return {"points": points, "pictures": len(client.list_artifacts(run.info.run_id, "samples")),
          "records": len(runs), "group": run.data.tags["group"], "status": run.info.status,
          "steps": int(run.data.params["train.steps"]), "note": media["note"],
          "counts": sum(media["weights/w"]["counts"])}


def read_wandb(workdir: pathlib.Path, run_id: str) -> dict:
  folders = [*(workdir / "wandb").glob("offline-run-*")]
  (folder,) = (folder for folder in folders if folder.name.endswith(run_id))
  points, pictures, found = [], 0, {"records": len(folders)}
  for record in wandb_records(folder / f"run-{run_id}.wandb"):
    kind = record.WhichOneof("record_type")
    if kind == "history":
      step = record.history.step.num
      values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item}
      pictures += "samples/path" in values
      if step == 28:
        found["note"], found["counts"] = values.pop("note"), sum(values["weights/w/values"])
      points += [(step, name, value) for name, value in values.items()
                 if not name.startswith(("_", "samples/", "weights/"))]
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
  runs = list(trackio.Api().runs("sngan"))
  (run,) = (run for run in runs if run.name == f"{workdir.name}-{run_id}")
  rows = SQLiteStorage.get_logs("sngan", run.name)
  points = [(row["step"], name, value) for row in rows for name, value in row.items()
            if name not in ("step", "timestamp", "samples", "note", "weights/w")]
  (media,) = (row for row in rows if row["step"] == 28)
  return {"points": points, "pictures": sum("samples" in row for row in rows),
          "records": len(runs), "group": run.config["_Group"], "steps": run.config["train.steps"],
          "status": [alert["title"] for alert in run.alerts()], "note": media["note"],
          "counts": sum(media["weights/w"]["values"])}


def as_text(value: object) -> object:
  return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
  service, folder, what, *numbers = sys.argv[1:]
  if what == "read":
    found = read(service, pathlib.Path(folder))
    found["points"] = [(step, name, as_text(value)) for step, name, value in found["points"]]
    print(json.dumps(found))
  else:
    draws = random.getstate(), np.random.get_state()[2]
    {"kill": killed, "resume": resumed, "roll_back": rolled_back}[what](
        service, pathlib.Path(folder), *map(int, numbers))
    assert (random.getstate(), np.random.get_state()[2]) == draws  # The run may use them.
