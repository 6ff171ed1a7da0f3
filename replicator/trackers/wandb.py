"""Weights & Biases: https://docs.wandb.ai/."""

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, Literal

import gin

from replicator.trackers.tracker import FINISHED, INTERRUPTED, TrackedRun, require


@gin.configurable(module="replicator")
class WandB:
  """Logs to Weights & Biases: `pip install 'replicator[wandb]'`, and `train.trackers = [@WandB()]`.

  Offline, the run is in the workdir's folder `wandb/`, and `wandb sync` sends it. W&B cannot resume
  a run there, and a server keeps only the newest of several with one id. So a resumed run writes
  all of its lines again, in place of those that it wrote before.

  Args:
    project: the project that the run belongs to; None for the program's name.
    entity: a user or a team; None for your own.
    mode: 'offline', or 'online' for a machine that is logged in to W&B.

  Raises:
    UsageError: the package wandb is not installed.
  """

  def __init__(self, project: str | None = None, entity: str | None = None,
               mode: Literal["offline", "online"] = "offline"):
    require("wandb", "WandB")
    self._project, self._entity, self._mode = project, entity, mode
    self._run: Any = None

  def begin(self, run: TrackedRun) -> int:
    """Opens the W&B run of this id; an offline one begins again at its first line."""
    import wandb
    if self._run is not None:  # Something failed.
      self._run.finish(exit_code=1)
    if self._mode == "offline":
      for earlier in (run.workdir / "wandb").glob(f"offline-run-*-{run.id}"):
        shutil.rmtree(earlier)
    # Training prints progress, which W&B would keep too; and the user's program may have a run.
    settings = wandb.Settings(console="off", silent=True, reinit="create_new")
    self._run = wandb.init(
        project=self._project or run.experiment, entity=self._entity, id=run.id, name=run.name,
        group=run.group or None, config=run.config, allow_val_change=True, resume="allow",
        dir=run.workdir, mode=self._mode, settings=settings)
    return self._run.step - 1

  def log(self, step: int, scalars: Mapping[str, float], picture: pathlib.Path | None) -> None:
    """Logs the scalars and the picture at once."""
    import wandb
    pictures = {"samples": wandb.Image(str(picture))} if picture else {}
    self._run.log({**scalars, **pictures}, step=step)

  def end(self, status: str) -> None:
    """Finishes the W&B run; the summary has the status as `ended`."""
    self._run.summary["ended"] = status
    if status == INTERRUPTED:
      self._run.mark_preempting()
    self._run.finish(exit_code=0 if status == FINISHED else 1)
    self._run = None
