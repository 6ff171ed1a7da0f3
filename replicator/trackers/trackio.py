"""Trackio: https://huggingface.co/docs/trackio/."""

import pathlib
from collections.abc import Mapping

import gin

from replicator.trackers.tracker import FINISHED, TrackedRun, require


@gin.configurable(module="replicator")
class Trackio:
  """Logs to Trackio: `pip install 'replicator[trackio]'`, and `train.trackers = [@Trackio()]`.

  The runs are on this machine, in the folder that TRACKIO_DIR names; `trackio show` shows them. A
  run is named after its workdir and its id. Trackio has no status of a run: the end is an alert.

  Args:
    project: the project that the run belongs to; None for the program's name.

  Raises:
    UsageError: Trackio is not installed.
  """

  def __init__(self, project: str | None = None):
    require("trackio", "Trackio")
    self._project = project

  def begin(self, run: TrackedRun) -> int:
    """Opens the Trackio run of this name, and asks for its last step."""
    import trackio
    self._where = self._project or run.experiment, f"{run.name}-{run.id}"
    self._run = trackio.init(*self._where, group=run.group or None, config=run.config,
                             resume="allow", embed=False)
    self._last = self._stored()
    return self._last

  def log(self, step: int, scalars: Mapping[str, float], picture: pathlib.Path | None) -> None:
    """Logs the scalars and the picture at once."""
    import trackio
    pictures = {"samples": trackio.Image(str(picture))} if picture else {}
    self._run.log({**scalars, **pictures}, step=step)
    self._last = step

  def end(self, status: str) -> None:
    """Finishes the Trackio run; raises a RuntimeError if something was not stored."""
    import trackio
    level = trackio.AlertLevel.INFO if status == FINISHED else trackio.AlertLevel.WARN
    self._run.alert(status, level=level)
    self._run.finish()
    if self._stored() != self._last:  # Trackio itself only warns.
      raise RuntimeError(f"only the lines up to step {self._stored()} were stored")

  def _stored(self) -> int:
    from trackio.sqlite_storage import SQLiteStorage
    last = SQLiteStorage.get_max_step_for_run(*self._where)
    return -1 if last is None else last
