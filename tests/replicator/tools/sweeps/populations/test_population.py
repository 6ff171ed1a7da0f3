"""Populations: who copies whom, with what bindings, and that a killed sweep goes on as it would."""

import dataclasses
import gc
import json
import math
import pathlib
import subprocess
import sys

from replicator.tools.sweeps import trials
from replicator.tools.sweeps.populations import lineage, population
from replicator.tools.sweeps.populations.lineage import Draw
from replicator.tools.sweeps.populations.population import following
from replicator.tools.sweeps.sweep_file import SweepFile
from tests.programs.forks import in_a_fork
from tests.programs.logs import rows
from tests.replicator.tools.sweeps.conftest import SweepCommand

import numpy as np
import pytest

SPACE = {"lr": ("log_uniform", 0.01, 10.0), "n": ("int_uniform", 1, 40),
         "c": ("choice", ["a", "b"])}
FILE = SweepFile("x.py", "loss", params=["train.steps = 4"], population=SPACE, trials=8, interval=2)
FIRST = [Draw({"c": "a", "lr": 0.1 * i, "n": 10 * i}) for i in range(1, 9)]
SCORES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]

# ---- What is drawn ------------------------------------------------------------------------------


def donors(made):
  return {number: member.parent for number, member in enumerate(made, 1) if member.parent}


def test_the_lowest_quarter_copies_the_top_quarter_and_the_others_go_on():
  made = following(FILE, [FIRST], SCORES)
  assert donors(made).keys() == {7, 8} and set(donors(made).values()) <= {1, 2}
  assert made[:6] == FIRST[:6]
  by_max = following(dataclasses.replace(FILE, goal="max"), [FIRST], SCORES)
  assert donors(by_max).keys() == {1, 2} and set(donors(by_max).values()) <= {7, 8}
  assert made == following(FILE, [FIRST], SCORES)  # The draws are those of the seed.
  drawn = {tuple(donors(following(dataclasses.replace(FILE, search_seed=seed), [FIRST],
                                  SCORES)).values()) for seed in range(20)}
  assert drawn == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_members_that_failed_copy_too_and_never_give():
  nan = math.nan
  made = following(FILE, [FIRST], [nan, 0.2, nan, nan, 0.5, 0.6, 0.7, 0.8])
  assert donors(made).keys() == {1, 3, 4} and set(donors(made).values()) <= {2, 5}
  alone = following(FILE, [FIRST], [nan] * 7 + [0.8])
  assert donors(alone) == dict.fromkeys(range(1, 8), 8)
  assert following(FILE, [FIRST], [nan] * 8) == []


def test_a_copy_has_the_bindings_of_its_donor_times_a_factor_or_from_their_space():
  found: dict[str, list] = {"lr": [], "n": [], "c": []}
  for seed in range(300):
    made = following(dataclasses.replace(FILE, search_seed=seed), [FIRST], SCORES)
    donor = FIRST[made[7].parent - 1].bindings
    for name in found:
      found[name].append((made[7].bindings[name], donor[name]))
    assert list(made[7].bindings) == list(donor)
  for name in ("lr", "n"):
    shares = [sum(math.isclose(value, factor * before) for value, before in found[name]) / 300
              for factor in (0.8, 1.2)]
    assert shares == pytest.approx([0.375, 0.375], abs=0.08)
  assert all(0.01 <= value <= 10 for value, _ in found["lr"])
  assert {type(value) for value, _ in found["n"]} == {int}
  assert sum(value != "a" for value, _ in found["c"]) / 300 == pytest.approx(0.125, abs=0.06)


def test_a_perturbed_value_stays_between_the_ends_of_its_interval():
  given = FILE.space()
  assert (given["lr"].scaled(9.0, 1.2), given["lr"].scaled(0.011, 0.8)) == (10.0, 0.01)
  assert (given["n"].scaled(39, 1.2), given["n"].scaled(1, 0.8)) == (40, 1)


def test_the_curve_of_a_copy_begins_at_its_donor():
  series = [{0: 9.0, 2: 1.0, 4: 0.5}, {0: 9.0, 1: math.nan, 2: 5.0, 3: 0.9, 4: 0.8}]
  assert list(lineage.pieces(2, [[Draw({}), Draw({})], [Draw({}), Draw({}, 1)]], series)) == [
    (0, 0, [(0, 9.0), (2, 1.0)]), (0, 1, [(0, 9.0), (2, 5.0)]),
    (1, 0, [(2, 1.0), (4, 0.5)]), (1, 1, [(2, 1.0), (3, 0.9), (4, 0.8)])]


# ---- Runs ---------------------------------------------------------------------------------------


@pytest.fixture
def members(sweep):
  """A sweep of four members over three generations of two steps."""
  def write(*params: str, **settings):
    return sweep.write(**{
      "grid": None, "seeds": None, "params": ["train.steps = 6", *params], "trials": 4,
      "interval": 2, "population": {"lr": ("log_uniform", 0.01, 2.0)}, **settings})

  sweep.write_members = write
  return sweep


def contents(folder: pathlib.Path) -> dict[str, str]:
  """All that a population has drawn, trained and logged."""
  return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*")
          if path.name in ("weight", "metrics.jsonl") or path.name.startswith("population_")}


def test_a_population_trains_in_generations_and_a_copy_goes_on_with_its_own_bindings(members):
  assert members.write_members().run() == 0
  assert "generation 3 of 3: 4 of 4 done" in members.out
  assert members.out.count(" copies member=") == 2
  (path,) = members.folder.glob("population_*.json")
  generations = json.loads(path.read_text())
  weights = {}
  for number, generation in enumerate(generations):
    before = dict(weights)
    for member, drawn in enumerate(generation, 1):
      weights[member] = before.get(drawn["parent"] or member, 0.0)
      for _ in range(2):
        weights[member] += drawn["bindings"]["lr"]
    assert sum(bool(drawn["parent"]) for drawn in generation) == bool(number)
  for folder in members.folder.glob("trials/*"):
    record = trials.read_record(folder)
    member = int(record.id.partition("_")[0].removeprefix("member="))
    assert float((folder / "checkpoints/step-00000006/weight").read_text()) == weights[member]
    assert record.bindings == generations[-1][member - 1]["bindings"]
    assert f"--gin_param=lr = {record.bindings['lr']}'" in record.command
    assert record.command.count("train.steps = ") == record.command.count("train.steps = 6") == 1
    last = [number for number, each in enumerate(generations) if each[member - 1]["parent"]][-1:]
    assert record.parent == "".join(
        f"{generations[number][member - 1]['parent']} at step {2 * number}" for number in last)
  page = (members.folder / "sweep.html").read_text()
  assert "Lineage" in page and "data:image/png;base64," in page
  assert page.count('<td data-name="copied member">') == 4
  assert (members.folder / "sweep.csv").read_text().partition("\n")[0].endswith(
      "parent,in_sweep_file,message")
  assert members.run() == 0 and " copies " not in members.out  # Nothing is left.


def test_a_population_that_is_killed_while_it_copies_goes_on_as_the_unbroken_one(
    members, tmp_path, monkeypatch):
  members.write_members(params=["train.steps = 4"], trials=2)
  assert members.run() == 0
  unbroken = contents(members.folder)
  members.folder = tmp_path / "broken"
  make = trials.Record.after
  after = lambda trial, earlier: killed() if trial.generation == 2 else make(trial, earlier)
  for where, name, replaced in (
      (population.shutil, "copytree", killed), (pathlib.Path, "rename", killed),
      (trials.Record, "after", after)):
    with monkeypatch.context() as patch:
      patch.setattr(where, name, replaced)
      assert members.run() == 1 and "killed here" in members.err
  assert members.run("--explain") == 0 and "generation 2 of 2: 2 trials" in members.out
  assert members.run() == 0
  assert contents(members.folder) == unbroken


def killed(*arguments, **keywords):
  raise OSError("killed here")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_population_on_ray_is_the_same(members, tmp_path, monkeypatch):
  monkeypatch.delenv("RAY_ADDRESS", raising=False)
  assert members.write_members().run() == 0
  local = contents(members.folder)
  members.folder = tmp_path / "ray"
  assert members.run("--runner=ray") == 0
  assert contents(members.folder) == local
  gc.collect()  # Ray drops processes that it has started; they must not warn in a later test.


@pytest.mark.slow
@in_a_fork
def test_members_of_a_real_population_are_bitwise_those_of_an_unbroken_run(tmp_path):
  from replicator.training.checkpoints import store  # Loads TensorFlow.
  sweep = SweepCommand(tmp_path)
  sweep.write(experiment="experiments.maml", grid=None, seeds=None, metric="eval/maml_1", trials=2,
              interval=20, population={"adam.learning_rate": ("log_uniform", 1e-4, 0.1)},
              gin_files=["configs/maml_sinusoids.gin"], params=[
                "train.steps = 40", "train.log_every = 5", "train.eval_every = 20",
                "train.checkpoint_every = 10", "train.steps_per_call = 5", "MAML.sizes = (4, 4)",
                "Replicator.jit_compile = False", "train_maml.new_tasks = 4"])

  def finish(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True)

  def state(run: pathlib.Path) -> dict[str, np.ndarray]:
    return store.read(run / "checkpoints")

  finish([sys.executable, "-m", "replicator", "sweep", *sweep.arguments()])
  found = {path: trials.read_record(path) for path in sweep.folder.glob("trials/*")}
  assert sorted(bool(record.parent) for record in found.values()) == [False, True]
  for path, record in found.items():
    if record.parent:  # What its optimizers used is what its command binds.
      rate = np.float32(record.bindings["adam.learning_rate"])
      assert {row["learning_rate/initial"] for row in rows(path) if row["step"] > 20} == {rate}
      rates = [float(value) for name, value in state(path).items()
               if name.startswith("optimizers/") and name.endswith("/001")]
      assert len(rates) == 2 and set(rates) == {rate}
    else:
      straight = tmp_path / "straight"
      finish([word.replace(str(path), str(straight)) for word in record.words()])
      assert rows(path) == rows(straight) and rows(path)[-1]["step"] == 40
      np.testing.assert_equal(state(path), state(straight))


def test_a_member_that_fails_or_has_no_finite_metric_is_replaced(members):
  assert members.write_members("fail = 3", "only = 2", "lost = 3").run() == 0
  assert "member=2" in members.out and "(failed) copies member=" in members.out
  assert "member=3" in members.out and "(nan) copies member=" in members.out
  assert members.statuses() == ["done"] * 4


def test_a_population_whose_members_all_fail_ends(members):
  assert members.write_members("fail = 3").run() == 1
  assert "generation 2 of 3: 0 of 4 done, 4 failed" in members.out


def test_explain_says_what_would_run(members):
  assert members.write_members().run("--explain") == 0
  assert "generation 1 of 3: 4 trials of" in members.out and not members.folder.exists()
  assert members.out.count(": to run\n") == 4
  assert "then, 2 times: the 1 with the worst" in members.out
  assert "'--gin_param=train.steps = 2'" in members.out


# ---- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("params, message", [
  (["saves = False"], "sweep.population: member=1_{} has no checkpoint of step 2; bind "
                      "train.checkpoint_every"),
  (["until = 1"], "sweep.metric = 'eval/loss': member=1_{} has none at step 2, the end of a "
                  "generation; EarlyStopping and sweep.interval cannot be combined"),
])
def test_a_member_that_cannot_go_on_ends_the_sweep_with_one_line(params, message, members):
  assert members.write_members(*params).run("--jobs=1") == 2
  (folder,) = members.folder.glob("trials/member=1_*")
  assert members.err == f"error: {message.format(folder.name.partition('_')[2])}\n"
