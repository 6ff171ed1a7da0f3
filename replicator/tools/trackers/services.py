"""MLflow, Weights & Biases and Trackio; each raises a UsageError if its package is missing."""

import functools
import re
import shutil
from typing import Any, Literal

from replicator.tools.trackers.outbox import FAILED, FINISHED, INTERRUPTED, Line, TrackedRun
from replicator.tools.trackers.tracker import Tracker, require

import gin

_TAG = "replicator.id"
_STATUS = {FINISHED: "FINISHED", FAILED: "FAILED", INTERRUPTED: "KILLED"}
_allowed = functools.partial(re.sub, r"[^\w\-. :/]", "_")  # Makes names valid for MLflow.


@gin.configurable(module="replicator")
class MLflow(Tracker):
  """Logs to MLflow: `pip install -e '.[mlflow]'`, and `train.callbacks = [@MLflow()]`.

  A run has the workdir's name, and the tag `group` if it belongs to a sweep. MLflow cannot change
  parameters, so a resumed run stores a changed value in a tag of the same name. Characters that
  MLflow does not allow in names become `_`. Timestamps count training time. Images, histograms and
  texts are artifacts.

  Args:
    uri: the server's URI, or `sqlite:///FILE`; None for MLFLOW_TRACKING_URI, or else MLflow's
      default.
    experiment: the experiment that the run belongs to; None for the program's name.
  """

  def __init__(self, uri: str | None = None, experiment: str | None = None):
    require(self)
    self._uri, self._experiment = uri, experiment

  def open(self, run: TrackedRun) -> int:
    """Opens or creates the run with the tag `replicator.id`; returns its last step."""
    import mlflow
    client = self._client = mlflow.MlflowClient(self._uri)
    name = self._experiment or run.experiment
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    found = client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
    tags = {_TAG: run.id, **({"group": run.group} if run.group else {})}
    opened = found[0] if found else client.create_run(experiment, tags=tags, run_name=run.name)
    self._id, self._started = opened.info.run_id, opened.info.start_time
    client.update_run(self._id, "RUNNING")
    client.log_artifact(self._id, str(run.workdir / "config.gin"))
    for key, value in run.config.items():
      key, text = _allowed(key), str(value)[:6000]  # MLflow's limit.
      if opened.data.params.get(key, text) != text:
        client.set_tag(self._id, key, text)
      elif key not in opened.data.params:
        client.log_param(self._id, key, text)
    history = client.get_metric_history(self._id, "seconds")  # Every line has it.
    return max((metric.step for metric in history), default=-1)

  def send(self, line: Line) -> None:
    """Logs the artifacts, then the scalars in one transaction."""
    from mlflow.entities import Metric
    step = f"step-{line.step:08d}"
    for name, pixels in line.images.items():
      folder = "samples" if name == "samples" else f"samples/{name}"
      self._client.log_image(self._id, pixels, f"{folder}/{step}.png")
    if line.histograms:
      self._client.log_dict(self._id, {
          name: {"counts": counts.tolist(), "edges": edges.tolist()}
          for name, (counts, edges) in line.histograms.items()}, f"histograms/{step}.json")
    if line.text:
      self._client.log_dict(self._id, line.text, f"text/{step}.json")
    if line.scalars:
      time = self._started + round(1000 * line.scalars["seconds"])
      self._client.log_batch(self._id, metrics=[
          Metric(_allowed(name), value, time, line.step) for name, value in line.scalars.items()])

  def close(self, status: str) -> None:
    """Sets the status to FINISHED, FAILED or, if the run was interrupted, KILLED."""
    self._client.set_terminated(self._id, _STATUS[status])


@gin.configurable(module="replicator")
class WandB(Tracker):
  """Logs to Weights & Biases: `pip install -e '.[wandb]'`, `train.callbacks = [@WandB()]`.

  Offline, the run is stored in the workdir's folder `wandb/`, and `wandb sync` uploads it. W&B
  cannot resume offline runs, so a resumed run writes its lines and images again, replacing the
  earlier ones.

  Args:
    project: the project of the run; None for the program's name.
    entity: a user or a team; None for your own.
    mode: 'offline', or 'online' for a machine that is logged in to W&B.
  """

  def __init__(self, project: str | None = None, entity: str | None = None,
               mode: Literal["offline", "online"] = "offline"):
    require(self)
    self._project, self._entity, self._mode = project, entity, mode
    self._run: Any = None

  def open(self, run: TrackedRun) -> int:
    """Opens the W&B run with this ID; an offline run starts again from its first line."""
    import wandb
    if self._run is not None:  # An earlier call failed.
      self._run.finish(exit_code=1)
    for earlier in (run.workdir / "wandb").glob(f"offline-run-*-{run.id}"):
      shutil.rmtree(earlier)  # A server keeps only the newest run with an ID.
    # Keeps the progress output out of W&B; the user's program may have its own run.
    settings = wandb.Settings(console="off", silent=True, reinit="create_new")
    self._run = wandb.init(
        project=self._project or run.experiment, entity=self._entity, id=run.id, name=run.name,
        group=run.group or None, config=run.config, allow_val_change=True, resume="allow",
        dir=run.workdir, mode=self._mode, settings=settings)
    return self._run.step - 1

  def send(self, line: Line) -> None:
    """Logs everything of a step at once."""
    import wandb
    # Scalars complete a step, so W&B is already at the next step when an image comes after them.
    self._run.log(_media(line, wandb), max(line.step, self._run.step), commit=bool(line.scalars))

  def close(self, status: str) -> None:
    """Finishes the W&B run; stores the status in the summary as `ended`."""
    self._run.summary["ended"] = status
    if status == INTERRUPTED:
      self._run.mark_preempting()
    self._run.finish(exit_code=0 if status == FINISHED else 1)
    self._run = None


@gin.configurable(module="replicator")
class Trackio(Tracker):
  """Logs to Trackio: `pip install -e '.[trackio]'`, and `train.callbacks = [@Trackio()]`.

  Runs are stored on this machine, in the folder TRACKIO_DIR; `trackio show` shows them. A run is
  named after its workdir and its ID. A run that does not finish gets an alert.

  Args:
    project: the project of the run; None for the program's name.
  """

  def __init__(self, project: str | None = None):
    require(self)
    self._project = project

  def open(self, run: TrackedRun) -> int:
    """Opens the Trackio run with this name; returns its last step."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage
    where = self._project or run.experiment, f"{run.name}-{run.id}"
    self._run = trackio.init(*where, group=run.group or None, config=run.config, resume="allow",
                             embed=False)
    last = SQLiteStorage.get_max_step_for_run(*where)
    return -1 if last is None else last

  def send(self, line: Line) -> None:
    """Logs everything of a step at once."""
    import trackio
    self._run.log(_media(line, trackio), step=line.step)

  def close(self, status: str) -> None:
    """Finishes the Trackio run."""
    if status != FINISHED:
      self._run.alert(status)
    self._run.finish()


def _media(line: Line, service: Any) -> dict[str, Any]:
  """Converts the data of a step to the form of W&B and Trackio."""
  return {**line.scalars, **line.text,
          **{name: service.Image(pixels) for name, pixels in line.images.items()},
          **{name: service.Histogram(np_histogram=x) for name, x in line.histograms.items()}}
