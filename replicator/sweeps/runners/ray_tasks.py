"""Trials on Ray: a local cluster, or the one that RAY_ADDRESS names.

Ray Tune places the trials; each is the same command in a process of its own as everywhere else.
All machines must see the sweep's folder and the experiment.
"""

import dataclasses
import os
import pathlib
import shutil
import time
from typing import Any

import ray
from ray import tune

from replicator import ray_cluster
from replicator.errors import UsageError
from replicator.sweeps import attempt, trials
from replicator.sweeps.attempt import Attempt
from replicator.sweeps.runners import local
from replicator.sweeps.stopping import Stopping
from replicator.sweeps.sweep import Sweep
from replicator.sweeps.trials import Metrics, Trial

_CORES_FOR_EACH = 2
_OBJECT_BYTES = 100 * 2 ** 20  # Trials pass nothing through it; Ray would take 30 %.
_SETTINGS = {
  "TUNE_DISABLE_SIGINT_HANDLER": "1",           # The sweep has its own.
  "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",    # The runs record themselves.
  "RAY_CHDIR_TO_TRIAL_DIR": "0",
  "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",    # Trials see the GPUs that their machine has.
  "RAY_AIR_NEW_OUTPUT": "0",
}


def run(sweep: Sweep, jobs: int | None, cwd: str) -> None:
  """Runs what is missing of the sweep; returns when all have ended, or have been stopped.

  Raises:
    UsageError: the cluster is not there.
  """
  os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
  cores = _CORES_FOR_EACH
  if not ray_cluster.address():
    jobs = jobs or local.default_jobs()
    cores = len(attempt.divided(attempt.usable_cores(), jobs)[0])
  try:
    # More trials at once than cores is what the user asked for.
    ray_cluster.connect("--runner=ray", num_cpus=(jobs or 1) * cores,
                        object_store_memory=_OBJECT_BYTES)
    with Stopping(sweep):
      _tune(sweep, jobs, cores, cwd)
  finally:
    ray.shutdown()
    shutil.rmtree(sweep.folder / ".ray", ignore_errors=True)


class _Trials(tune.search.Searcher):
  """Tune asks it for the next trial, and tells it of the end of each."""

  def __init__(self, sweep: Sweep, config: dict[str, Any]):
    super().__init__(metric="best", mode=sweep.file.goal)
    self.error: UsageError | None = None
    self._sweep, self._config = sweep, config
    self._ids: dict[str, str] = {}

  def suggest(self, trial_id: str) -> Any:
    """The configuration of Tune's trial."""
    trial = self._sweep.next()
    if trial is None:
      return self.FINISHED
    self._ids[trial_id] = trial.id
    return {**self._config, "trial": dataclasses.asdict(trial)}

  def on_trial_complete(self, trial_id: str, result: dict | None = None,
                        error: bool = False) -> None:
    """An error of the sweep's own is kept until the running trials have saved."""
    try:
      self._sweep.ended(self._ids[trial_id])
    except UsageError as usage_error:
      self.error = usage_error
      self._sweep.stop()

  def save(self, checkpoint_path: str) -> None:
    """Nothing: the sweep's folder is its memory."""
    pathlib.Path(checkpoint_path).touch()

  def restore(self, checkpoint_path: str) -> None:
    """Is never called."""
    raise NotImplementedError

  def __getstate__(self) -> dict:  # Tune keeps a copy of its settings, which nobody reads.
    return {}


class _Look(tune.Callback):
  """Tune calls it again and again."""

  def __init__(self, sweep: Sweep):
    self._sweep = sweep

  def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
    """Prunes, and shows how it goes."""
    self._sweep.look()

  def __getstate__(self) -> dict:
    return {}


def _tune(sweep: Sweep, jobs: int | None, cores: int, cwd: str) -> None:
  """Lets Tune run all trials; an error of the sweep's own is raised when they have ended."""
  config = {"folder": str(sweep.folder.resolve()), "metric": sweep.file.metric,
            "goal": sweep.file.goal, "cwd": cwd, "cores": cores}
  search = _Trials(sweep, config)
  tuner = tune.Tuner(
    tune.with_resources(_run_trial, {"cpu": cores}),
    tune_config=tune.TuneConfig(search_alg=search, num_samples=-1, max_concurrent_trials=jobs,
                                reuse_actors=True),
    run_config=tune.RunConfig(storage_path=str(sweep.folder.resolve() / ".ray"), name="tune",
                              verbose=0, callbacks=[_Look(sweep)]))
  tuner.fit()
  if search.error:
    raise search.error


def _run_trial(config: dict[str, Any]) -> None:
  """What Tune runs in a worker: the trial's own command; reports the metric as it is logged."""
  facts = config["trial"]
  trial = Trial(facts["id"], facts["bindings"], tuple(facts["words"]))
  folder = pathlib.Path(config["folder"])
  metrics = Metrics(folder / "trials" / trial.id)
  reported = 0
  with attempt.free_cores(config["cores"]) as cores:
    running = Attempt(trial, folder, config["cwd"], cores)
    record = None
    while record is None:
      time.sleep(attempt.POLL_SECONDS)
      record = running.poll()
      series = metrics.series(config["metric"])
      for step, value in series[reported:]:
        tune.report({"step": step, "last": value, "status": record.status if record else "running",
                     "best": trials.best_of(series, config["goal"])})
      reported = len(series)
  if not reported:
    tune.report({"status": record.status})
