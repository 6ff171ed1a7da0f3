"""Which trials come next, and the study of Optuna that holds those that have ended."""

import csv
import dataclasses
import json
import math

from replicator.tools.sweeps.results import TrialResult
from replicator.tools.sweeps.search import JOURNAL, Search
from replicator.tools.sweeps.sweep_file import SweepFile
from replicator.tools.sweeps.trials import DONE, FAILED, PRUNED, Record
from tests.replicator.tools.sweeps.conftest import studies

import pytest

FILE = SweepFile("x.py", "loss", optuna={
  "lr": ("log_uniform", 1e-3, 1.0), "n": ("int_uniform", 1, 3), "c": ("choice", ["a", (1, 2)])},
  trials=20, startup_trials=5)


def loss(record):
  """The distance of the learning rate from 0.1 as a logarithm."""
  return abs(math.log(record.bindings["lr"] / 0.1))


class Searches:
  """Searches in one folder, without trials: each point has its `loss`."""

  def __init__(self, folder):
    self.folder, self.journal = folder, folder / JOURNAL
    self.results = {}

  def begin(self, file=FILE, retry_failed=False):
    return Search(file, self.results, retry_failed, self.folder)

  def add(self, file, trial_id, bindings, status=DONE):
    """Records a trial as it is read from a file."""
    record = Record(trial_id, json.loads(json.dumps(bindings)), status, order=len(self.results))
    series = [(1, loss(record)), (2, math.nan)]
    self.results[trial_id] = TrialResult(record, file, series=series)
    return self.results[trial_id]

  def run(self, file=FILE, count=100, status=DONE):
    """Ends up to `count` trials of a new search; returns the trials that it knows."""
    search = self.begin(file)
    while count and (trial := search.propose()):
      count -= 1
      result = self.add(file, trial.id, trial.bindings, status)
      assert not search.is_poor(result)
      search.ended(result)
    return search.trials

  def study(self):
    (study,) = studies(self.folder)
    return study


@pytest.fixture
def searches(tmp_path):
  return Searches(tmp_path)


# ---- Proposals ----------------------------------------------------------------------------------


def test_the_search_does_better_than_chance(searches):
  searches.run(dataclasses.replace(FILE, trials=50))
  records = [result.record for result in searches.results.values()]
  losses = list(map(loss, records))
  assert len(losses) == 50
  assert sorted(losses[-20:])[10] < 0.9  # Half of all learning rates are farther off than 1.7.
  for record in records:
    assert record.bindings["n"] in (1, 2, 3) and record.bindings["c"] in ("a", [1, 2])
    assert record.bindings["lr"] == float(f"{record.bindings['lr']:.4g}")


def test_a_resumed_search_proposes_what_it_would_have_proposed(searches, tmp_path):
  whole = searches.run()
  (tmp_path / "resumed").mkdir()
  resumed = Searches(tmp_path / "resumed")
  for number, count in enumerate((3, 6, 1, 100)):
    resumed.run(count=count)
    if number == 1:  # The study follows from the records.
      resumed.journal.unlink()
  assert list(resumed.results) == list(whole)
  (tmp_path / "other").mkdir()
  other = Searches(tmp_path / "other")
  assert not set(other.run(dataclasses.replace(FILE, search_seed=1))) & set(whole)


def test_a_search_knows_the_recorded_trials_of_its_space(searches):
  first = dict(searches.run(count=12))
  bindings = next(iter(first.values())).bindings
  narrow, far = (Record.make(FILE, point, searches.folder)
                 for point in ({"lr": 1.0}, {**bindings, "lr": 2.0}))
  searches.add(FILE, "other", bindings)  # With other common settings.
  searches.add(FILE, narrow.id, narrow.bindings)
  searches.add(FILE, far.id, far.bindings)
  both = searches.run()
  assert len(both) == 20 and set(first) < set(both) and not {"other", narrow.id, far.id} & set(both)


def test_the_search_ends_when_all_points_were_tried(searches):
  file = SweepFile("x.py", "loss", optuna={"lr": ("choice", [1, 2, 3])}, trials=30)
  assert len(searches.run(file)) == 3


@pytest.mark.parametrize("status, retry_failed, is_next", [
  ("stopped", False, True), ("failed", True, True), ("failed", False, False),
  ("pruned", True, False)])
def test_a_trial_that_has_not_ended_is_proposed_first(status, retry_failed, is_next, searches):
  second = list(searches.run(count=3))[1]
  searches.results[second].record.status = status
  search = searches.begin(retry_failed=retry_failed)
  assert search.peek().bindings.keys() == {"lr", "n", "c"}
  assert (search.propose().id == second) == is_next


def test_a_trial_of_a_search_that_is_complete_may_still_be_left(searches):
  file = dataclasses.replace(FILE, trials=3)
  last = list(searches.run(file))[2]
  assert searches.begin(file).peek() is None
  searches.results[last].record.status = "stopped"
  search = searches.begin(dataclasses.replace(file, trials=1))
  assert search.count == 3 and search.peek().id == last


# ---- Pruning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", ["min", "max"])
def test_a_trial_is_pruned_from_a_step_on_if_it_is_worse_than_the_median(goal, searches):
  worse = 1.0 if goal == "min" else -1.0
  file = SweepFile("x.py", "loss", goal, optuna={"lr": ("choice", [1, 2, 3, 4, 5])}, trials=5,
                   startup_trials=2, prune_after=10)
  search = searches.begin(file)

  def observed(*values: float) -> list[bool]:
    """Whether each point of a new trial, at the steps 5, 10, ..., lets it be pruned."""
    trial = search.propose()
    series = [(5 * number, value) for number, value in enumerate(values, 1)]
    result = TrialResult(Record(trial.id, trial.bindings, DONE), file)
    found = []
    for seen in range(1, len(series) + 1):
      result.series = series[:seen]
      found.append(search.is_poor(result))
    search.ended(result)
    return found

  assert observed(0.0, 0.0, 0.0) == observed(5 * worse, 5 * worse, 5 * worse) == [False] * 3
  assert observed(9 * worse, 9 * worse, 9 * worse) == [False, True, True]
  assert observed(math.nan, math.nan, math.inf) == [False] * 3  # Nothing is known of it.
  assert observed(-worse, -worse, -worse) == [False] * 3


def test_a_poor_trial_is_pruned(sweep):
  search_of = lambda *rates: {
    "grid": None, "seeds": None, "trials": len(rates), "startup_trials": 2, "prune_after": 1,
    "optuna": {"lr": ("choice", list(rates))}, "params": [f"hold = '{sweep.hold}'"]}
  assert sweep.write(**search_of(0.3, 0.31)).run() == 0
  # The next trials would never end by themselves.
  assert sweep.write_held(**search_of(0.3, 0.31, 5.0, 6.0)).run() == 0
  with (sweep.folder / "sweep.csv").open() as file:
    found = {float(row["lr"]): (row["status"], row["step"]) for row in csv.DictReader(file)}
  assert found == {0.3: (DONE, "3"), 0.31: (DONE, "3"), 5.0: (PRUNED, "3"), 6.0: (PRUNED, "3")}
  assert "2 of 4 done, 2 pruned" in sweep.out
  assert sweep.run() == 0
  assert list(sweep.logs().values()) == [[0]] * 4


# ---- The study ----------------------------------------------------------------------------------


def test_the_study_holds_the_trials_that_have_ended_by_value_or_text(searches):
  values = [0.1, True, None, "@adam", "text", ("@r1", 2), [1]]
  file = SweepFile("x.py", "loss", "max", grid={"lr": [1.0, 2], "b": values}, seeds=[1, 2])
  search = searches.begin(file)
  for number, trial in enumerate(iter(search.propose, None)):
    if number < 4:
      record = Record(trial.id, trial.bindings, [DONE, FAILED, PRUNED, DONE][number], seconds=60.0)
      search.ended(TrialResult(record, file, series=[
        (1, math.nan), *([(3, 5.0), (4, 2.0)] if number < 3 else [])]))
  study = searches.study()
  assert study.study_name.startswith("loss ") and study.direction.name == "MAXIMIZE"
  done, failed, pruned, without = study.trials
  assert done.params == {"b": 0.1, "lr": 1.0, "train.seed": 1}
  assert done.distributions["b"].choices == (0.1, "True", "None", "@adam", "'text'", "(@r1, 2)",
                                             "[1]")
  assert (done.value, done.intermediate_values) == (5.0, {3: 5.0, 4: 2.0})
  assert done.user_attrs["id"] in search.trials
  assert abs(done.duration.total_seconds() - 60) < 1
  assert [trial.state.name for trial in (failed, pruned, without)] == ["FAIL", "PRUNED", "FAIL"]


def test_a_trial_is_in_the_study_once_and_again_when_it_was_retried(searches):
  file = SweepFile("x.py", "loss", grid={"lr": [1, 2]})
  searches.run(file, status=FAILED)
  for result in searches.results.values():
    result.record.status = DONE
    searches.begin(file)  # The sweep was killed before it added the trial.
    searches.begin(file)
  assert [(trial.params["lr"], trial.state.name) for trial in searches.study().trials] == [
    (1, "FAIL"), (2, "FAIL"), (1, "COMPLETE"), (2, "COMPLETE")]


def test_a_journal_that_a_killed_sweep_has_torn_is_repaired(searches):
  searches.run(count=3)
  content = searches.journal.read_bytes()
  searches.journal.write_bytes(content[:-20])  # The line of the third trial.
  searches.journal.with_name(f"{JOURNAL}.lock").symlink_to(JOURNAL)
  searches.run(count=1)
  assert [trial.number for trial in searches.study().trials] == [0, 1, 2, 3]
  assert [trial.user_attrs["id"] for trial in searches.study().trials] == list(searches.results)


def test_another_space_or_metric_has_a_study_of_its_own(searches):
  file = SweepFile("x.py", "loss", grid={"lr": [1, 2]})
  searches.run(file)
  searches.run(dataclasses.replace(file, grid={"lr": [2, 3]}))
  searches.run(dataclasses.replace(file, metric="other"))
  assert [[trial.params["lr"] for trial in study.trials] for study in studies(searches.folder)] == [
    [1, 2], [2, 3], [1, 2]]


def test_trials_of_a_gin_file_that_has_changed_have_a_study_of_their_own(searches, tmp_path):
  gin_file = tmp_path / "small.gin"
  file = SweepFile("x.py", "loss", grid={"lr": [1], "gin_file": [str(gin_file)]})
  for steps in (1, 2):
    gin_file.write_text(f"train.steps = {steps}")
    searches.run(dataclasses.replace(file))
  assert [len(study.trials) for study in studies(searches.folder)] == [1, 1]
