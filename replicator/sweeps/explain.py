"""What a sweep would run: its trials, their bindings and their commands."""

from collections.abc import Iterator

from replicator.sweeps import search, trials
from replicator.sweeps.sweep import Sweep
from replicator.sweeps.trials import Trial


def lines(sweep: Sweep, retry_failed: bool) -> Iterator[str]:
  """The lines that explain a sweep; nothing runs, and no file is written."""
  file = sweep.file
  best = "lowest" if file.goal == "min" else "highest"
  yield (f"{sweep.folder}: {sweep.search.count} trials of {file.experiment}; the best has the "
         f"{best} {file.metric}")
  for number, trial in enumerate(sweep.search.trials.values(), 1):
    yield f"\n{number}. {trial.id}: {_status(sweep, trial, retry_failed)}"
    yield from _trial(sweep, trial)
  proposed = sweep.search.count - len(sweep.search.trials)
  example = sweep.search.probe()
  if proposed and example:
    yield f"\n{proposed} trials to be proposed by Optuna, each from the results of earlier ones:"
    yield from (f"     {name} = {written!r}" for name, written in sorted(file.optuna.items()))
    yield f"\nOne could be {example.id}:"
    yield from _trial(sweep, example)


def _status(sweep: Sweep, trial: Trial, retry_failed: bool) -> str:
  record = sweep.records.get(trial.id)
  if record and search.is_ended(record, retry_failed):
    return record.status
  if not record or record.status == trials.WAITING:
    return "to run"
  return f"{record.status}, to resume"


def _trial(sweep: Sweep, trial: Trial) -> Iterator[str]:
  yield from (f"     {name} = {trials.gin_text(value)}" for name, value in trial.bindings.items())
  yield f"   {trials.shell_command(trial, sweep.trial_folder(trial.id))}"
