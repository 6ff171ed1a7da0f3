"""MLflow: https://mlflow.org/docs/latest/ml/tracking/."""

import itertools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import gin

from replicator.trackers.tracker import FAILED, FINISHED, INTERRUPTED, TrackedRun, require

_TAG = "replicator.id"
_LAST = "seconds"  # The scalar that every line has, and that is logged last of a line.
_STATUS = {FINISHED: "FINISHED", FAILED: "FAILED", INTERRUPTED: "KILLED"}
_BATCH = 100  # The most parameters that one request may have.
_LENGTH = 6000  # The most letters that the value of a parameter may have.


@gin.configurable(module="replicator")
class MLflow:
  """Logs to MLflow: `pip install 'replicator[mlflow]'`, and `train.trackers = [@MLflow()]`.

  A run of MLflow has the workdir's name, and the tag `group` if it belongs to a sweep. Pictures and
  `config.gin` are artifacts. MLflow cannot change a parameter: where a resumed run has another
  value, a tag of the parameter's name has it. In names, MLflow takes letters, digits and `_-. :/`;
  others become `_`. An infinite number becomes the largest one in a database. Times are those of
  the training, counted from the start of the run.

  Args:
    uri: of the server, or `sqlite:///FILE`; None for what MLFLOW_TRACKING_URI says, or else
      MLflow's own default.
    experiment: the experiment that the run belongs to; None for the program's name.

  Raises:
    UsageError: MLflow is not installed.
  """

  def __init__(self, uri: str | None = None, experiment: str | None = None):
    require("mlflow", "MLflow")
    self._uri = uri
    self._experiment = experiment

  def begin(self, run: TrackedRun) -> int:
    """Opens or makes the run with the tag `replicator.id`, and asks for the last step of it."""
    import mlflow
    self._client = mlflow.MlflowClient(self._uri)
    experiment = self._experiment_id(self._experiment or run.experiment)
    found = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
    tags = {_TAG: run.id, **({"group": run.group} if run.group else {})}
    opened = found[0] if found else self._client.create_run(
        experiment, tags=tags, run_name=run.name)
    self._id, self._started = opened.info.run_id, opened.info.start_time
    self._client.update_run(self._id, "RUNNING")
    self._write_config(run, opened.data.params)
    history = self._client.get_metric_history(self._id, _LAST)
    return max((metric.step for metric in history), default=-1)

  def log(self, step: int, scalars: Mapping[str, float], picture: pathlib.Path | None) -> None:
    """Logs a picture, then the scalars in one transaction."""
    from mlflow.entities import Metric
    if picture is not None:
      self._client.log_artifact(self._id, str(picture), "samples")
    time = self._started + round(1000 * scalars.get(_LAST, 0.0))
    names = sorted(scalars, key=lambda name: name == _LAST)
    self._client.log_batch(self._id, metrics=[
        Metric(_allowed(name), scalars[name], time, step) for name in names])

  def end(self, status: str) -> None:
    """Sets the status to FINISHED, FAILED or, of an interrupted run, KILLED."""
    self._client.set_terminated(self._id, _STATUS[status])

  def _experiment_id(self, name: str) -> str:
    from mlflow.exceptions import MlflowException
    try:
      return self._client.create_experiment(name)
    except MlflowException:  # It exists, or something is wrong.
      found = self._client.get_experiment_by_name(name)
      if found is None:
        raise
      return found.experiment_id

  def _write_config(self, run: TrackedRun, known: Mapping[str, str]) -> None:
    from mlflow.entities import Param
    config = {_allowed(name): _text(value) for name, value in run.config.items()}
    new = iter([Param(name, value) for name, value in config.items() if name not in known])
    while batch := list(itertools.islice(new, _BATCH)):
      self._client.log_batch(self._id, params=batch)
    for name, value in config.items():
      if known.get(name, value) != value:
        self._client.set_tag(self._id, name, value)
    self._client.log_artifact(self._id, str(run.workdir / "config.gin"))


def _allowed(name: str) -> str:
  return re.sub(r"[^\w\-. :/]", "_", name)


def _text(value: Any) -> str:
  return str(value)[:_LENGTH]
