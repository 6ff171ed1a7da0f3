"""The contents of sweep files, and the points of their spaces."""

import sys

from replicator.errors import UsageError
from replicator.tools.sweeps import search, sweep_file
from replicator.tools.sweeps.trials import Record
from tests.programs.refusals import refusal

import gin
import pytest

BEGIN = "sweep.experiment = 'experiments.sngan'\nsweep.metric = 'loss'\n"
POPULATION = "sweep.population = {'a': ('uniform', 0, 1)}\n"


def read(tmp_path, text, *bindings):
  path = tmp_path / "sweep.gin"
  path.write_text(BEGIN + text)
  return sweep_file.read(str(path), bindings)


def points(tmp_path, text):
  return search.points(read(tmp_path, text))


# ---- The space ----------------------------------------------------------------------------------


def test_a_grid_is_every_combination_and_seeds_come_last(tmp_path):
  found = points(tmp_path, "sweep.grid = {'b': [1, 2], 'a': ['x', 'y']}\nsweep.seeds = [7, 8]")
  assert [(point["b"], point["a"], point["train.seed"]) for point in found] == [
    (b, a, seed) for b in (1, 2) for a in ("x", "y") for seed in (7, 8)]


def test_zipped_values_go_together_as_one_dimension(tmp_path):
  found = points(tmp_path, "sweep.zip = {'a': [1, 2], 'b': [3, 4]}\nsweep.grid = {'c': [5, 6]}")
  assert [(point["a"], point["b"], point["c"]) for point in found] == [
    (1, 3, 5), (2, 4, 5), (1, 3, 6), (2, 4, 6)]


def test_draws_follow_their_distribution_and_are_readable(tmp_path):
  found = points(tmp_path, """
sweep.random = {'u': ('uniform', -1, 1), 'l': ('log_uniform', 1e-4, 1.0),
                'i': ('int_uniform', 2, 4), 'c': ('choice', ['x', [1, 2]])}
sweep.trials = 200""")
  assert len(found) == 200
  assert all(-1 <= point["u"] <= 1 and 1e-4 <= point["l"] <= 1 for point in found)
  assert {point["i"] for point in found} == {2, 3, 4}
  assert [point["c"] for point in found].count("x") in range(70, 130)
  assert sum(point["l"] < 1e-2 for point in found) in range(70, 130)  # Half of the decades.
  assert all(point["u"] == float(f"{point['u']:.4g}") for point in found)


def test_draws_that_are_rounded_stay_in_their_interval(tmp_path):
  text = "sweep.random = {'a': ('uniform', %s, %s)}\nsweep.trials = 1"
  assert points(tmp_path, text % (1.00006, 1.00009)) == [{"a": 1.00006}]  # Not 1.0,
  assert points(tmp_path, text % (1.99996, 1.99999)) == [{"a": 1.99999}]  # nor 2.0.


def test_choices_need_no_brackets_and_points_have_sorted_names(tmp_path):
  found = points(tmp_path, "sweep.random = {'c': ('choice', 1, 2)}\nsweep.trials = 2\n"
                           "sweep.grid = {'z': [3], 'a': [4]}")
  assert sorted(point["c"] for point in found) == [1, 2]
  assert all(list(point) == ["a", "c", "z"] for point in found)


def test_draws_stay_when_trials_or_names_are_added(tmp_path):
  few = points(tmp_path, "sweep.random = {'a': ('uniform', 0, 1)}\nsweep.trials = 3")
  more = points(tmp_path, "sweep.random = {'b': ('uniform', 0, 1), 'a': ('uniform', 0, 1)}\n"
                          "sweep.trials = 5")
  other = points(tmp_path, "sweep.random = {'a': ('uniform', 0, 1)}\nsweep.trials = 3\n"
                           "sweep.search_seed = 1")
  assert [point["a"] for point in more][:3] == [point["a"] for point in few]
  assert not {point["a"] for point in other} & {point["a"] for point in few}
  assert not {point["a"] for point in more} & {point["b"] for point in more}


def test_equal_draws_count_once(tmp_path):
  text = "sweep.random = {'a': ('choice', [1, 2, 3])}\nsweep.trials = "
  assert sorted(point["a"] for point in points(tmp_path, text + "3")) == [1, 2, 3]
  with pytest.raises(UsageError, match="has only 3 different points"):
    points(tmp_path, text + "4")


def test_gin_files_are_a_dimension(tmp_path):
  for name in "xyz":
    (tmp_path / f"{name}.gin").touch()
  x, y, z = (str(tmp_path / f"{name}.gin") for name in "xyz")
  file = read(tmp_path, f"sweep.gin_files = ['{x}']\nsweep.params = ['n = 1']\n"
                        f"sweep.grid = {{'gin_file': ['{y}', ['{y}', '{z}']], 'a': [0.5]}}")
  trials = [Record.make(file, point, tmp_path) for point in search.points(file)]
  assert [trial.words() for trial in trials] == [
    [sys.executable, "-m", "experiments.sngan", f"--gin_file={x}",
     *(f"--gin_file={path}" for path in added), "--gin_param=n = 1", "--gin_param=a = 0.5",
     f"--workdir={tmp_path}/trials/{trial.id}"]
    for added, trial in zip(([y], [y, z]), trials, strict=True)]


def test_values_are_written_as_gin_reads_them(tmp_path):
  file = read(tmp_path, "sweep.grid = {'a.b': ['@adam', '%rate', 'text', None, (1, 2), True, "
                        "-1e999, ['@r1()', ['%x', 'y']], ('@z', (3,), ())]}")
  written = [Record.make(file, point, tmp_path).words()[-2] for point in search.points(file)]
  assert written == [f"--gin_param=a.b = {text}" for text in (
    "@adam", "%rate", "'text'", "None", "(1, 2)", "True", "-1e999", "[@r1(), [%x, 'y']]",
    "(@z, (3,), ())")]


def test_the_command_line_overrides_the_file_and_gin_is_left_clean(tmp_path):
  file = read(tmp_path, "sweep.seeds = [1]", "sweep.seeds = [2, 3]")
  assert file.seeds == [2, 3]
  assert (file.goal, file.search_seed, file.startup_trials, file.prune_after) == (
    "min", 0, 5, None)  # The defaults.
  assert gin.config_str().strip() == ""


def test_a_sweep_file_may_have_macros_and_include_another(tmp_path):
  (tmp_path / "common.gin").write_text("rates = [1, 2]\nsweep.grid = {'a': %rates}\n")
  file = read(tmp_path, "include 'common.gin'\nsweep.seeds = [1]")
  assert file.grid == {"a": [1, 2]} and file.seeds == [1]


# ---- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text, message", [
  ("sweep.gird = {'a': [1]}", "sweep.gin:3: 'sweep' has no parameter 'gird'. Did you mean 'grid'?"),
  ("train.steps = 3", "sweep.gin:3: a sweep file binds only sweep.NAME; put 'train.steps = ...'"),
  ("a/sweep.seeds = [1]", "sweep.gin:3: a/sweep.seeds: a sweep has no scopes; use sweep.seeds"),
  ("rate = 3\nsweep.seeds = [1]", "sweep.gin:3: the macro rate is never used"),
  ("sweep.seeds = [1, 2.5]", "sweep.gin:3: sweep.seeds = [1, 2.5]: must be a list of int"),
  ("sweep.seeds = [1]\nsweep.seeds = [2]", "sweep.gin:4: sweep.seeds is set here and on line 3"),
  ("sweep.grid = {'a': [@adam]}", "put gin references in quotes, such as '@adam'"),
  ("sweep.grid = {'a': [1}", "sweep.gin:3: not valid gin"),
  ("", "the search space is empty"),
  ("sweep.grid = {'a': []}", "sweep.grid: 'a': the list is empty"),
  ("sweep.grid = {'a': 3}", "sweep.grid: 'a' = 3: must be a list of values"),
  ("sweep.grid = {'a b': [1]}", "'a b': must be the name of a binding"),
  ("sweep.grid = {'a': [1, 2, 1]}", "'a': 1 appears twice"),
  ("sweep.grid = {'gin_file': ['no.gin']}", "'no.gin': no such file"),
  ("sweep.gin_files = ['no.gin']", "sweep.gin_files: 'no.gin': no such file"),
  ("sweep.zip = {'a': [1, 2], 'b': [1]}", "must have the same length, but 'a' has 2, 'b' has 1"),
  ("sweep.grid = {'a': [1]}\nsweep.zip = {'a': [1]}", "sweep.zip: 'a' is already in sweep.grid"),
  ("sweep.params = ['a = 2']\nsweep.seeds = [1]\nsweep.grid = {'a': [1]}", "already in sweep.par"),
  ("sweep.optuna = {'a': ('uniform', 0, 1)}", "sweep.optuna: bind sweep.trials"),
  ("sweep.interval = 5\nsweep.seeds = [1]", "sweep.interval: is only for sweep.population, which"),
  (POPULATION, "sweep.population: bind sweep.trials, the number of points"),
  (f"{POPULATION}sweep.trials = 1", "sweep.trials = 1: a population must have at least two"),
  (f"{POPULATION}sweep.trials = 4", "sweep.population: bind sweep.interval, the number of steps"),
  (f"{POPULATION}sweep.trials = 4\nsweep.interval = 5", "sweep.params, such as 'train.steps = 2"),
  (f"{POPULATION}sweep.trials = 4\nsweep.interval = 5\nsweep.params = ['train.steps = 1_001']",
   "sweep.interval = 5: must divide train.steps = 1001 in sweep.params"),
  (f"{POPULATION}sweep.trials = 4\nsweep.seeds = [1]", "sweep.population must be used alone"),
  ("sweep.params = ['a']", "sweep.params: 'a': must be a binding"),
  ("sweep.goal = 'low'", "sweep.gin:3: sweep.goal = 'low': must be one of 'min', 'max'"),
  ("sweep.random = {'a': ('uniform', 0, 1)}", "sweep.random: bind sweep.trials"),
  ("sweep.trials = 2\nsweep.seeds = [1]", "sweep.trials: is only for sweep.random or sweep.optuna"),
  ("sweep.random = {'a': ('unifrom', 0, 1)}", "'unifrom': no such distribution. Did you mean"),
  ("sweep.random = {'a': [1, 2]}", "[1, 2]: must be a distribution"),
  ("sweep.random = {'a': ('log_uniform', 0, 1)}", "its low end must be above 0"),
  ("sweep.random = {'a': ('int_uniform', 0.5, 2)}", "low, high), two whole numbers"),
  ("sweep.prune_after = 3\nsweep.seeds = [1]", "sweep.prune_after: is only for sweep.optuna"),
  ("sweep.trials = 0", "sweep.trials = 0: must be at least 1"),
  ("sweep.prune_after = -1", "sweep.prune_after = -1: must be at least 0"),
  ("sweep.random = {'a': ('uniform', 1)}", "must be ('uniform', low, high), two numbers"),
  ("sweep.random = {'a': ('uniform', 1, 1)}", "must be ('uniform', low, high), two numbers"),
  ("sweep.random = {'a': ('uniform', 0, 1e999)}", "('uniform', low, high), two numbers"),
  ("sweep.random = {'a': ('int_uniform', False, 2)}", "low, high), two whole numbers"),
  *((f"sweep.optuna = {{'a': ('uniform', 0, 1)}}\nsweep.trials = 1\nsweep.{other}",
     "sweep.optuna must be used alone") for other in (
         "grid = {'b': [1]}", "zip = {'b': [1]}", "random = {'b': ('uniform', 0, 1)}",
         "seeds = [1]")),
])
def test_a_mistake_is_reported_in_one_line(text, message, tmp_path):
  assert message in refusal(read, tmp_path, text)


def test_a_mistake_on_the_command_line_names_its_flag(tmp_path):
  for binding, message in (("sweep.seeds = [1", "not valid gin"), ("sweep.seed = [1]", "'seeds'"),
                           ("train.steps = 3", "binds only sweep.NAME")):
    with pytest.raises(UsageError, match=f"^--sweep_param: .*{message}"):
      read(tmp_path, "sweep.seeds = [1]", binding)


def test_what_is_missing_is_named(tmp_path):
  path = tmp_path / "sweep.gin"
  path.write_text("sweep.seeds = [1]\n")
  with pytest.raises(UsageError, match=r"must bind sweep.experiment and sweep.metric"):
    sweep_file.read(str(path))
  with pytest.raises(UsageError, match=r"--sweep_file=no.gin: no such file"):
    sweep_file.read("no.gin")
