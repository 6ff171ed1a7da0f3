"""The `config.gin` of a run: it is enough to repeat the run, and to find differences."""

import json
import pathlib

import replicator
from replicator import UsageError, random
from replicator.app import config
from replicator.configuration import operative
from replicator.configuration.differences import differences
from replicator.configuration.gin_internals import current_bindings, format_config
from replicator.configuration.literals import literal
from replicator.configuration.statements import RECORD_HEADER
from tests.programs import two_networks  # noqa: F401  (for gin)
from tests.programs.logs import rows

import gin
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@gin.configurable
def noise(scale: float = 1.0, kind: str = "normal", note: str = "") -> tf.Tensor:
  """A configurable that the step calls."""
  draw = random.normal if kind == "normal" else random.uniform
  return scale * tf.reduce_mean(draw("noise", [8]))


@gin.configurable
def judge(limit: float = 2.0, places: int = 3) -> float:
  """A configurable that only the evaluation calls."""
  return round(limit, places)


def train(workdir: str, files: list[str], *bindings: str, evaluates: bool = True) -> list[dict]:
  """Trains a tiny step; returns the logged rows, without the times."""
  def step() -> dict[str, tf.Tensor]:
    with gin.config_scope("inner"):
      return {"noise": noise() + tf.cast(replicator.step_number(), tf.float32)}

  config.parse(files, list(bindings))
  evaluate = lambda step: replicator.Evaluation({"limit": judge()})
  replicator.train(lambda: step, None, evaluate if evaluates else None, workdir=workdir)
  return rows(pathlib.Path(workdir))


SETTING = ("train.log_every = 1", "train.eval_every = 2", "train.checkpoint_every = 2")
# 200 letters, which gin writes in several lines, and characters that mean something in gin.
NOTE = "a 'long' \"note\" % @ # " + "word " * 40


def written(workdir: str) -> str:
  return pathlib.Path(workdir, "config.gin").read_text()


def test_a_run_is_made_again_from_its_config_alone(capsys):
  pathlib.Path("a.gin").write_text(
      f"WIDE = 3.5\nSCALE = %WIDE\nnoise.scale = %SCALE\nnoise.note = {NOTE!r}\n"
      "noise.kind = 'normal'\n")
  pathlib.Path("loud.gin").write_text("LOUD = 9.0\nnoise.scale = %LOUD\n")
  pathlib.Path("b.gin").write_text(
      "include 'loud.gin'\ninclude 'a.gin'\ninner/noise.kind = 'uniform'\n")
  first = train("1", ["b.gin"], "train.steps = 4", "train.seed = 3", *SETTING)
  text = written("1")
  for line in (RECORD_HEADER, "WIDE = 3.5", "SCALE = %WIDE", "inner/noise.scale = %SCALE",
               "inner/noise.kind = 'uniform'", "judge.limit = 2.0", "train.seed = 3",
               "train.precision = 'float32'", "Replicator.strategy = 'default'"):
    assert line in text.splitlines()
  assert "LOUD" not in text  # It would be a macro that is never used.
  capsys.readouterr()
  assert train("2", ["1/config.gin"]) == first
  assert written("2") == text
  assert "note: " not in capsys.readouterr().out
  assert gin.query_parameter("noise.note") == NOTE


def test_the_order_of_a_dict_is_kept():
  gin.parse_config("noise.note = {'b': 1, 'a': {'d': 2, 'c': 3}}")
  text = format_config(current_bindings())
  assert "noise.note = {'b': 1, 'a': {'d': 2, 'c': 3}}" in text.splitlines()


INFINITE = float("inf")


@pytest.mark.parametrize("written_as, value", [
    ("1e999", INFINITE), ("-1e999", -INFINITE), ("[(1e999,), 'inf']", [(INFINITE,), "inf"]),
    ("{'a': [1e999, -1e999], 'b': ()}", {"a": [INFINITE, -INFINITE], "b": ()}), ("-0.0", -0.0),
    ("b'\\x00inf'", b"\x00inf"), ("5e-324", 5e-324), ("1e999j", complex(0, INFINITE)),
    ("-1e999j", -complex(0, INFINITE)), ("[-2.0j, (0.5j,)]", [-2j, (0.5j,)]),
    ("{-1e999: {1: (True, None)}, None: 0}", {-INFINITE: {1: (True, None)}, None: 0}),
    ("(((1e999,),),)", (((INFINITE,),),)), ("'a\\n\\'\"%x @y() #'", "a\n'\"%x @y() #"),
    ("'\\udc80'", "\udc80"), (str(2 ** 70), 2 ** 70)])
def test_every_value_that_gin_reads_comes_back(written_as, value):
  gin.parse_config(f"WIDE = {written_as}\nnoise.note = {written_as}\ninner/noise.note = %WIDE")
  text = format_config(current_bindings())
  assert f"noise.note = {written_as}" in text and f"WIDE = {written_as}" in text
  gin.clear_config()
  gin.parse_config(text)
  assert repr(gin.query_parameter("noise.note")) == repr(value)
  assert differences(text, text.replace(f"note = {written_as}", "note = 7"))["noise.note"] == (
      written_as, "7")


@pytest.mark.parametrize("value", [
    ["a b " * 40, b"\0 " * 90], {"k" * 90: ("v " * 60, 1e999)}, "line\n" * 40, [[INFINITE] * 60]])
def test_a_value_longer_than_a_line_comes_back(value):
  gin.parse_config(f"noise.note = {literal(value)}")
  text = format_config(current_bindings())
  gin.clear_config()
  gin.parse_config(text)
  assert gin.query_parameter("noise.note") == value


gin.constant("tests.NOT_A_NUMBER", float("nan"))


def test_gin_reads_no_nan_but_a_constant_of_the_program():
  for text in ("nan", "-nan", "1e999 - 1e999", "[nan]", "float('nan')"):
    with pytest.raises(SyntaxError):
      gin.parse_config(f"noise.note = {text}")
  gin.parse_config("noise.note = [%NOT_A_NUMBER]")
  text = format_config(current_bindings())
  gin.clear_config()
  gin.parse_config(text)
  assert "noise.note = [%tests.NOT_A_NUMBER]" in text.splitlines()


def test_a_later_run_of_the_process_does_not_record_the_calls_of_an_earlier_one():
  run = lambda name, step, **options: replicator.train(
      step, workdir=name, steps=1, eval_every=0, **options)
  config.parse([], ["judge.places = 2"])
  run("1", lambda: lambda: {"limit": tf.constant(judge())}, log_every=1)
  run("2", lambda: lambda: {"noise": noise()}, seed=5)
  assert {"judge.limit = 2.0", "train.seed = 0"} <= set(written("1").splitlines())
  assert "noise.scale = 1.0" in written("2")
  assert "judge.limit" not in written("2") and "train.seed" not in written("2")
  gin.clear_config()
  run("3", lambda: lambda: {"noise": noise()})
  assert "judge" not in written("3")
  assert json.loads(pathlib.Path("3", "run.json").read_text())["settings"] == []


def test_a_resumed_run_keeps_what_only_an_evaluation_used_and_reports_changes(capsys):
  train("run", [], "train.steps = 2", "judge.limit = 4.0", "noise.scale = 2.0", *SETTING)
  first = written("run")
  assert "judge.limit = 4.0" in first and "judge.places = 3" in first
  # This part has no evaluation; its binding is known from the first part.
  train("run", [], "train.steps = 3", "judge.limit = 4.0", "noise.scale = 0.5",
        "train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 1")
  said = capsys.readouterr().out
  for line in ("changed: train.steps = 3, was 2", "changed: train.eval_every = 0, was 2",
               "changed: inner/noise.scale = 0.5, was 2.0"):
    assert line in said.splitlines()
  assert "warning" not in said and "judge" not in said
  resumed = written("run")
  assert "judge.limit = 4.0" in resumed and "judge.places = 3" in resumed
  # A new value that an evaluation may use gives a warning; a mistake is an error.
  train("run", [], *SETTING, "train.steps = 4", "TwoNetworks.critic_width = 2")
  said = capsys.readouterr().out
  assert "warning: --gin_param: TwoNetworks.critic_width is never used" in said
  assert "changed: judge.limit = 2.0, was 4.0" in said
  with pytest.raises(UsageError, match=r"iner/noise.scale is never used.* Did you mean 'inner'"):
    train("run", [], "train.steps = 5", *SETTING, "iner/noise.scale = 1.0")


def test_what_a_run_did_not_use_of_an_earlier_config_is_a_note(capsys):
  train("1", [], "train.steps = 2", *SETTING)
  capsys.readouterr()
  train("2", ["1/config.gin"], evaluates=False)
  assert "note: 2 values of 1/config.gin were not used, such as judge.limit" in (
      capsys.readouterr().out.splitlines())


def test_what_only_an_overridden_value_refers_to_is_written_if_it_was_called():
  for calls in (False, True):
    config.parse([], ["TwoNetworks.optimizer = @rmsprop", "rmsprop.rho = 0.5",
                      "x/rmsprop.rho = 0.2", "TwoNetworks.optimizer = @sgd", "adam.beta_1 = 0.5"])
    if calls:
      gin.get_configurable("rmsprop")()
    lines = operative.text().splitlines()
    for line in ("rmsprop.rho = 0.5", "x/rmsprop.rho = 0.2", "rmsprop.momentum = 0.0"):
      assert (line in lines) == calls
    assert "TwoNetworks.optimizer = @sgd" in lines and "adam.beta_1 = 0.5" in lines


def test_a_resumed_run_replaces_a_config_that_is_gone_or_corrupt(tmp_path):
  path = tmp_path / "config.gin"
  config.parse([], [])
  for earlier in (None, b"train.steps = 3\xff", b"train.steps = ["):
    if earlier:
      path.write_bytes(earlier)
    assert operative.after_first_step(path, resumed=True, evaluated=True) == []
    assert path.read_text().startswith(RECORD_HEADER)


DIFFERENCES = [  # Two texts, and what differs.
    ("a.x = 1\n", "a.x = 1  # The same.\n", {}),
    ("a.x = 1e-3\n", "a.x = 0.001\n", {}),
    ("N = 1\na.x = %N\n", "a.x = 1\n", {}),
    ("N = 1\na.x = [%N, 2]\n", "N = 3\na.x = [%N, 2]\n", {"a.x": ("[1, 2]", "[3, 2]")}),
    ("N = 1\nM = %N\na.x = {'k': [%M]}\n", "a.x = {'k': [1]}\n", {}),
    ("s/N = 1\na.x = %s/N\n", "a.x = 1\n", {}),
    ("N = 1\na.x = (%N, 2)\n", "a.x = (1, 2)\n", {}),
    ("a.x = %M\n", "a.x = 1\n", {"a.x": ("%M", "1")}),
    ("a.x = @b\n", "a.x = @b()\n", {"a.x": ("@b", "@b()")}),
    ("b.x = 1\na.y = 2\n", "", {"a.y": ("2", None), "b.x": ("1", None)}),
    ("", "s/a.x = @b/f()\n", {"s/a.x": (None, "@b/f()")}),
    ("a.x = 1\n", "a.x = 2\na.x = 3\n", {"a.x": ("1", "3")}),
    ("a:\n  x = {'k': 'v'}\n", "a.x = {'k': 'w'}\n", {"a.x": ("{'k': 'v'}", "{'k': 'w'}")}),
]


def test_differences_are_those_of_values():
  assert [differences(before, now) for before, now, _ in DIFFERENCES] == [
      expected for *_, expected in DIFFERENCES]


def test_a_resumed_run_reports_each_change(tmp_path):
  (tmp_path / "config.gin").write_text("judge.limit = 2.0\nunknown.x = 1\n")
  config.parse([], ["judge.limit = 3.0", "noise.scale = 4.0"])
  found = operative.after_first_step(tmp_path / "config.gin", resumed=True, evaluated=True)
  assert [line for line in found if line.startswith("changed: ")] == [
      "changed: judge.limit = 3.0, was 2.0", "changed: noise.scale = 4.0, new",
      "changed: unknown.x is no longer set, was 1"]
