"""Configuration files and bindings, and mistakes in them."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import gin
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError
from replicator.app import config
from replicator.configuration import checks, operative, statements
from replicator.configuration.gin_internals import registry
from tests.programs import two_networks  # noqa: F401  (for gin)


@gin.configurable(denylist=["given"])
def planted(rate: float = 0.1, count: int = 1, flag: bool = False, kind: Literal["a", "b"] = "a",
            sizes: Sequence[int] = (), names: Mapping[str, float] | None = None,
            make: Callable[[], object] | None = None, pair: tuple[int, int] = (1, 2),
            anything=None, given: int = 0) -> float:
  """A configurable in which the tests make mistakes."""
  return rate


@gin.configurable
def nobody_calls_this(x: int = 0) -> None:
  """A configurable that no test calls."""


@gin.configurable
def takes_nothing() -> None:
  """A configurable without parameters."""


@gin.configurable
def takes_any(**options) -> dict:
  """A configurable whose parameters nobody knows."""
  return options


@gin.configurable(allowlist=["shown"])
def partly_open(shown: int = 1, hidden: int = 2) -> int:
  """A configurable of which gin files set a part."""
  return shown + hidden


gin.constant("test_config.HALF", 0.5)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  yield
  gin.clear_config()


def write(name: str, text: str) -> str:
  """Writes a file in the working directory; returns its name."""
  path = pathlib.Path(name)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  return name


def value(name: str):
  return gin.query_parameter(name)


def error(files: list[str], *bindings: str) -> str:
  """The one-line error for a mistake in some files and bindings."""
  with pytest.raises(UsageError) as raised:
    config.parse(files, bindings)
  return str(raised.value).splitlines()[0]  # The command line shows it; gin appends others.


# ---- Values -------------------------------------------------------------------------------------


def test_later_files_and_then_parameters_override():
  first = write("1.gin", "train.steps = 1\ntrain.log_every = 1\ntrain.seed = 1\n")
  second = write("2.gin", "train.steps = 2\ntrain.log_every = 2\n")
  config.parse([first, second], ["train.steps = 3", "train.eval_every = 3"])
  assert [value(f"train.{name}") for name in ("seed", "log_every", "steps", "eval_every")] == [
      1, 2, 3, 3]


def test_parsing_again_forgets_the_earlier_configuration():
  config.parse([], ["train.steps = 1"])
  config.parse([], ["train.seed = 2"])
  with pytest.raises(ValueError):
    value("train.steps")


@pytest.mark.parametrize("binding, expected", [
    ("planted.rate = 1", 1), ("planted.sizes = [1, 2]", [1, 2]), ("planted.names = None", None),
    ("planted.pair = [3, 4]", [3, 4]), ("planted.names = {'a': 1}", {"a": 1}),
    ("planted.anything = 'x'", "x"), ("planted.rate = \\\n  2.5", 2.5),
    ("planted:\n  rate = 0.5\n  count = 2", 0.5), ("planted.kind = 'b'", "b"),
    ("takes_any.color = 'red'", "red"), ("partly_open.shown = 4", 4)])
def test_a_value_of_the_annotated_type_is_used(binding, expected):
  for files, params in (([write("a.gin", binding + "\n")], []), ([], [binding])):
    config.parse(files, params)
    name = binding.partition(" =")[0] if ":" not in binding[:9] else "planted.rate"
    assert value(name) == expected


def test_values_of_macros_and_calls_are_used():
  config.parse([write("a.gin", "planted.make = @x/planted\nN = 3\nM = %N\nplanted.count = %M\n"
                               "planted.anything = [@nobody_calls_this()]\n")], [])
  assert value("planted.count").scoped_configurable_fn() == 3
  assert value("planted.anything")[0].configurable.name == "nobody_calls_this"


def test_an_included_or_earlier_file_may_be_overridden():
  write("base.gin", "planted.rate = 1.0\nSCALE = 1\nplanted.count = %SCALE\n"
                    "planted.flag = %gin.REQUIRED\n")
  write("main.gin", "include 'base.gin'\nplanted.rate = 2.0\nSCALE = 2\nplanted.flag = True\n")
  config.parse(["main.gin", write("more.gin", "planted.count = 3\n")],
               ["planted.rate = 4.0", "planted.rate = 5.0"])
  assert (value("planted.rate"), value("planted.count")) == (5.0, 3)


# ---- Files that include files -------------------------------------------------------------------


def test_a_file_is_included_relative_to_the_one_that_includes_it():
  write("configs/base.gin", "train.steps = 1\n")
  write("configs/deep/middle.gin", "include '../base.gin'\ntrain.seed = 2\n")
  write("configs/main.gin", 'include "deep/middle.gin"\ntrain.log_every = 3\n')
  config.parse(["configs/main.gin"], [])
  assert [value(f"train.{name}") for name in ("steps", "seed", "log_every")] == [1, 2, 3]


def test_a_file_is_included_relative_to_the_working_directory():
  write("configs/base.gin", "train.steps = 1\n")
  write("elsewhere/main.gin", "include 'configs/base.gin'\n")
  config.parse(["elsewhere/main.gin"], [])
  assert value("train.steps") == 1


def test_the_command_line_may_include_a_file():
  write("configs/base.gin", "train.steps = 1\n")
  config.parse([], ["include 'configs/base.gin'", "train.seed = 2"])
  assert (value("train.steps"), value("train.seed")) == (1, 2)


def test_imports_are_part_of_the_written_configuration():
  config.parse([write("a.gin", "import tests.programs.two_networks\n")], [])
  assert "import tests.programs.two_networks" in operative.text().splitlines()


@pytest.mark.parametrize("other, own, files", [
    ("base.gin", "configs/base.gin", {"configs/main.gin": "base.gin"}),
    ("other/base.gin", "configs/base.gin", {"other/main.gin": "base.gin",
                                            "configs/main.gin": "base.gin"}),
    ("configs/base.gin", "configs/deep/base.gin", {"configs/deep/main.gin": "base.gin",
                                                   "configs/main.gin": "deep/main.gin"})])
def test_a_file_of_the_same_name_in_another_folder_is_not_included(other, own, files):
  write(other, "train.steps = 99\n")
  write(own, "train.steps = 1\n")
  for name, included in files.items():
    write(name, f"include '{included}'\n")
  config.parse(list(files), [])
  assert value("train.steps") == 1


def test_two_files_may_include_the_same_one():
  write("configs/base.gin", "train.steps = 1\n")
  write("configs/deep/one.gin", "include '../base.gin'\ntrain.seed = 2\n")
  write("configs/deep/base.gin", "train.steps = 99\n")
  write("configs/main.gin", "include 'deep/one.gin'\ninclude 'base.gin'\n")
  config.parse(["configs/main.gin"], [])
  assert (value("train.steps"), value("train.seed")) == (1, 2)


# ---- Mistakes -----------------------------------------------------------------------------------


def test_a_missing_file_is_an_error():
  assert error(["nowhere.gin"]) == "--gin_file=nowhere.gin: no such file"


@pytest.mark.parametrize("missing, meant", [
    ("mine/one_fil.gin", "mine/one_file.gin"), ("one_fil.gin", "configs/one_file.gin"),
    ("rare_nam.gin", "configs/deep/rare_name.gin")])
def test_a_similar_file_is_one_beside_it_or_in_configs(missing, meant):
  for name in ("mine/one_file.gin", "configs/one_file.gin", "configs/deep/rare_name.gin"):
    write(name, "")
  assert error([missing]) == f"--gin_file={missing}: no such file. Did you mean '{meant}'?"


def test_a_configuration_with_a_mistake_leaves_no_statements():
  config.parse([], ["train.steps = 1"])
  assert len(statements.last_read()) == 1
  error([], "train.seed = 1", "train.stepps = 1")
  assert statements.last_read() == []


@pytest.mark.parametrize("binding, end", [
    ("planted.count = 2.5", "must be int, not float"),
    ("planted.rate = 'high'", "must be float, not str"),
    ("planted.sizes = 3", "must be Sequence[int], not int"),
    (f"planted.count = '{'x' * 80}'", f" = '{'x' * 56}...: must be int, not str"),
    (f"planted.count = '{'x' * 58}'", f" = '{'x' * 58}': must be int, not str")])
def test_a_value_without_a_remedy_gets_none(binding, end):
  assert error([], binding).endswith(end)


def test_what_belongs_to_gin_is_never_meant():
  assert "'constant'" not in error([], "constnt.x = 1")


# Each text begins in line 3 of a file; the number is the line that the message names.
MISTAKES = {
    "unknown parameter": (
        "train.stepps = 1", 3, "'train' has no parameter 'stepps'. Did you mean 'steps'? It has: "
                               "steps,"),
    "unknown parameter of a block": (
        "train:\n  steps = 1\n  sead = 2", 5, "no parameter 'sead'. Did you mean 'seed'?"),
    "parameter of the program": (
        "train.workdir = 'x'", 3, "'train' gets its 'workdir' from the program"),
    "unknown configurable": (
        "trian.steps = 1", 3, "nothing configurable is called 'trian'. Did you mean 'train'?"),
    "unknown configurable in a scope": (
        "a/b/trian.steps = 1", 3, "nothing configurable is called 'trian'. Did you mean 'train'?"),
    "unknown function": (
        "TwoNetworks.optimizer = @x/Adm()", 3, "'Adm'. Did you mean 'adam'?"),
    "the name that Keras has": (
        "TwoNetworks.optimizer = @Adam", 3, "is called 'Adam'. Did you mean 'adam'?"),
    "the name in capitals": ("SGD.momentum = 0.5", 3, "is called 'SGD'. Did you mean 'sgd'?"),
    "unknown function in a list": (
        "planted.anything = [\n    @adam,\n    @keras.optimizers.Adm,\n]", 5,
        "Did you mean 'adam'?"),
    "set twice": (
        "planted.rate = 1.0\nplanted.count = 2\nplanted.rate = 2.0", 5,
        "planted.rate is set here and in line 3; keep one"),
    "macro set twice": (
        "planted.rate = %R\nR = 1.0\nR = 2.0", 5, "R is set here and in line 4; keep one"),
    "macro without a value": (
        "planted.rate = %RAET\nRATE = 1.0\nplanted.anything = %RATE", 3,
        "the macro %RAET has no value. Did you mean 'RATE'? Write RAET = ..."),
    "macros in a circle": (
        "A = %B\nB = %A\nplanted.rate = %A", 3, "A = %B: the macro refers to itself"),
    "macro that is never used": ("RATE = 1.0", 3, "the macro RATE is never used"),
    "macro like one that is used": (
        "planted.rate = %RATE\nRATE = 1.0\nRATES = 2.0", 5, "never used. Did you mean 'RATE'?"),
    "macro like nothing": ("QQQQ = 1", 3, "is never used. Write %QQQQ where it is the value"),
    "macro like a parameter": ("train_steps = 1", 3, "never used. Did you mean 'train.steps'?"),
    "block of an unknown configurable": (
        "trian:\n  steps = 1", 3, "nothing configurable is called 'trian'. Did you mean 'train'?"),
    "parameter of none": ("takes_nothing.x = 1", 3, "has no parameter 'x'. It has none"),
    "parameter that is not open": (
        "partly_open.hidden = 1", 3, "'partly_open' gets its 'hidden' from the program"),
    "parameter like one that is open": (
        "partly_open.shwon = 1", 3, "no parameter 'shwon'. Did you mean 'shown'? It has: shown"),
    "constant of another type": (
        "planted.count = %test_config.HALF", 3, "= %test_config.HALF: must be int, not float"),
    "None in small letters": ("planted.names = none", 3, "planted.names = none (write None)"),
    "null": ("planted.names = null", 3, "planted.names = null (write None)"),
    "false": ("planted.flag = false", 3, "planted.flag = false (write False)"),
    "string that is almost a function": (
        "TwoNetworks.optimizer = 'adm'", 3, "not str. Did you mean 'adam'?"),
    "parameter without its owner": (
        "steps_per_call = 5", 3, "is never used. Did you mean train.steps_per_call?"),
    "string for a float": (
        "planted.rate = '1e-3'", 3, "must be float, not str. Write 1e-3 without quotes"),
    "string for a learning rate": (
        "adam.learning_rate = 'high'", 3, "must be float or LearningRateSchedule, not str"),
    "float for an int": ("train.steps = 1e4", 3, "must be int, not float. Write 10000"),
    "bool for an int": ("planted.count = True", 3, "must be int, not bool"),
    "int for a bool": ("planted.flag = 1", 3, "must be bool, not int"),
    "None for a float": ("planted.rate = None", 3, "must be float, not NoneType"),
    "another word": (
        "planted.kind = 'B'", 3, "must be one of 'a', 'b', not str. Did you mean 'b'?"),
    "string for a sequence": ("planted.sizes = 'abc'", 3, "must be Sequence[int], not str"),
    "float among ints": (
        "planted.sizes = [1,\n 2.5]", 3, "must be Sequence[int], not one with these elements"),
    "three for two": ("planted.pair = (1, 2, 3)", 3, "must be tuple[int, int]"),
    "string among floats": ("planted.names = {'a': 'b'}", 3, "must be Mapping[str, float] or None"),
    "macro of another type": (
        "COUNT = 2.5\nplanted.count = %COUNT", 4, "planted.count = %COUNT: must be int, not float"),
    "string for a function": (
        "TwoNetworks.optimizer = 'adam'", 3, "must be a function (@name), not str. Write @adam"),
    "call for a function": (
        "TwoNetworks.optimizer = @adam()", 3, "not what it returns. Write @adam"),
    "function for a call": (
        "adam.learning_rate = @LinearDecay", 3, "not the function itself. Write @LinearDecay()"),
    "value that must be overridden": (
        "planted.rate = %gin.REQUIRED", 3, "planted.rate must have a value; write planted.rate ="),
    "missing include": ("include 'nowhere.gin'", 3, "includes 'nowhere.gin', and there is no such"),
    "include of itself": ("include 'wrong.gin'", 3, "includes itself"),
    "missing module": ("import nowhere_to_be_found", 3, "No module named 'nowhere_to_be_found'"),
    "no value": ("train.steps = = 1", 3, "not valid gin: train.steps = = 1"),
    "no equals sign": ("train.steps 1", 3, "not valid gin: train.steps 1"),
    "word without quotes": (
        "train.precision = float64", 3, "train.precision = float64 (a string needs quotes"),
    "quote without end": ("train.precision = 'float64", 3, "not valid gin: train.precision = 'fl"),
    "two dots": ("train..steps = 1", 3, "not valid gin: train..steps = 1"),
    "two values": ("train.steps = 1 2", 3, "not valid gin: train.steps = 1 2"),
    "bracket without end": (
        "planted.sizes = [1,\n 2", 3, "not valid gin: planted.sizes = [1, (a bracket or a string"),
    "bracket without end before another binding": (
        "planted.sizes = [1,\n 2\nplanted.rate = 2.0", 5,
        "not valid gin: planted.rate = 2.0 (in the value that begins in line "),
}


def test_a_bracket_without_end_names_the_line_where_its_value_begins():
  write("a.gin", "\nplanted.sizes = [1,\n 2\nplanted.rate = 2.0\n")
  assert error(["a.gin"]).endswith(" (in the value that begins in line 2)")


@pytest.mark.parametrize("text, line, message", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_file_and_line(text, line, message):
  wrong = write("configs/wrong.gin", f"# A comment.\n\n{text}\n")
  reported = error([wrong])
  assert reported.startswith(f"configs/wrong.gin:{line}: ")
  assert message in reported and "\n" not in reported
  # The same holds for a file that another one includes,
  if "include" not in text:
    assert error([write("main.gin", "train.seed = 1\ninclude 'configs/wrong.gin'\n")]) == reported
    # and for the command line, where a value may be set twice.
    if "keep one" not in message:
      alone = error([], "train.seed = 1", text)
      assert alone.startswith("--gin_param: ") and message.split("; ")[0] in alone


def test_an_ambiguous_name_is_an_error():
  @gin.configurable("planted", module="another.module")
  def planted_too(rate: float = 0.1) -> float:
    return rate

  try:
    reported = error([write("a.gin", "\nplanted.rate = 1.0\n")])
  finally:
    registry().pop("another.module.planted")
  assert reported.startswith("a.gin:2: 'planted' may mean any of: ")
  assert "another.module.planted" in reported


def test_a_file_that_is_not_text_is_an_error():
  pathlib.Path("a.gin").write_bytes(b"\xff\xfe\x00")
  assert error(["a.gin"]).startswith("a.gin: cannot be read: ")


# ---- Values that are missing -------------------------------------------------------------------


def missing(*names: str) -> str | None:
  """One line about a call of `planted` without some values."""
  return checks.missing_value(RuntimeError(
      f"Required bindings for `planted` not provided in config: {list(names)}"))


def test_a_missing_value_is_to_be_written_into_the_last_file():
  config.parse([write("a.gin", "planted.rate = 1.0\nx/planted.count = 2\n"),
                write("b.gin", "planted.flag = True\n")], ["planted.kind = 'a'"])
  assert missing("count", "given") == (
      "the configuration must set: planted.count (a.gin:2 sets x/planted.count only); write "
      "planted.count = ... in b.gin, or with --gin_param")
  assert missing("given") is None  # The program's own.
  assert checks.missing_value(RuntimeError("of another kind")) is None


def test_without_a_file_the_ones_of_the_experiment_are_listed(monkeypatch):
  monkeypatch.setattr(checks.flags, "experiment", lambda: "gan")
  written = write("config.gin", f"{statements.RECORD_HEADER}\nplanted.rate = 1.0\n")
  for files in ([], [written]):  # A run's own record is no file to write into.
    config.parse(files, [])
    assert missing("count", "pair") == (
        "the configuration must set: planted.count, planted.pair; write planted.count = ... with "
        "--gin_param")
  write("configs/other.gin", "# python -m experiments.gan --gin_file=configs/other.gin\n")
  write("configs/gan_small.gin", "")
  write("configs/third.gin", "# python -m experiments.began --gin_file=configs/third.gin\n")
  assert missing("count") == (
      "the configuration must set: planted.count; write --gin_file=F, where F is one of "
      "configs/gan_small.gin, configs/other.gin")


# ---- Values that nothing uses -------------------------------------------------------------------


@pytest.mark.parametrize("binding, calls, reason", [
    ("planted.rate = 1.0", {"": "count"}, "the program gives planted a rate of its own"),
    ("planted.rate = 1.0", {}, "planted is not called by the end of the first step"),
    ("a/planted.rate = 1.0", {"": "rate"}, "not called in the scope 'a'. It is called outside of"),
    ("a/planted.rate = 1.0", {"b/c": "rate", "b": "rate"}, "It is called in the scopes b, b/c"),
    ("planted.rate = 1.0", {"a/b": "rate"}, None),
    ("a/planted.rate = 1.0", {"a/b": "rate"}, None),
    ("a/planted.rate = 1.0", {"ab": "rate"}, "in the scope 'a'"),
    ("a/b/planted.rate = 1.0", {"a": "rate"}, "in the scope 'a/b'")])
def test_a_value_has_no_effect_for_a_reason(binding, calls, reason):
  config.parse([], [binding])
  (read,) = statements.last_read()
  called = {(scope, read.selector): {name: 1} for scope, name in calls.items()}
  found = [str(each) for each in checks.unused([read], called)]
  assert found == [] if reason is None else reason in found[0]


@pytest.mark.parametrize("scope, is_refused", [
    ("critick", True), ("crit", True), ("a_critix", False), ("other", False), ("critic", False)])
def test_a_misspelled_scope_is_refused_before_any_evaluation(scope, is_refused):
  config.parse([], [f"{scope}/planted.rate = 1.0"])
  with gin.config_scope("critic"):
    planted(given=1)
  try:
    operative.check_scopes()
  except UsageError as refused:
    assert is_refused and f"{scope}/planted.rate is never used" in str(refused)
  else:
    assert not is_refused


def train(files: list[str], *bindings: str, evaluate=None, rate: dict | None = None) -> str:
  """The one-line error after the first step, or "" if there is none."""
  def step() -> dict:
    with gin.config_scope("critic"):
      return {"loss": tf.constant(planted(given=1, **rate or {}))}

  config.parse(files, ["train.steps = 2", "train.checkpoint_every = 0", *bindings])
  try:
    replicator.train(lambda: step, None, evaluate, workdir="run")
  except UsageError as raised:
    return str(raised).splitlines()[0]
  return ""


@pytest.mark.usefixtures("restored")
def test_values_that_nothing_used_are_reported_after_the_first_step():
  lines = ["include 'base.gin'", "", "critick/planted.rate = 1.0", "critic/planted.kind = 'b'",
           "critic/more/planted.count =\\\n   3", "nobody_calls_this.x = 2",
           "train.eval_every = 0", "planted.rate = 2.0", "critic/planted.count = 4"]
  reported = train([write("base.gin", "planted.flag = True\ntrain.seed = 1\n"),
                    write("wrong.gin", "\n".join(lines) + "\n")], "nobody_calls_this.x = 3",
                   rate={"kind": "a"})
  assert reported.split(" (and ") == [
      "wrong.gin:3: critick/planted.rate is never used: planted is not called in the scope "
      "'critick'. Did you mean 'critic'? It is called in the scopes critic",
      "wrong.gin:4: critic/planted.kind, wrong.gin:5: critic/more/planted.count, "
      "--gin_param: nobody_calls_this.x)"]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("scope", ["crit", "critics", "critic/more", "more/critic"])
def test_a_scope_is_not_the_beginning_of_another_ones_name(scope):
  assert f"{scope}/planted.count is never used" in train([], f"{scope}/planted.count = 4")


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("evaluate, bindings, message", [
    (None, ["nobody_calls_this.x = 1"], "--gin_param: nobody_calls_this.x is never used"),
    # Without an evaluation, nobody knows which values it would use.
    (lambda step: None, ["nobody_calls_this.x = 1", "train.eval_every = 0"], ""),
    (lambda step: None, ["critick/planted.rate = 1.0", "train.eval_every = 0"], "'critick'"),
])
def test_a_value_that_only_a_later_evaluation_may_use_is_a_warning(
    evaluate, bindings, message, capsys):
  reported = train([], *bindings, evaluate=evaluate)
  assert message in reported and bool(message) == bool(reported)
  said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
  assert said == [] if message else said[0].startswith(
      "warning: --gin_param: nobody_calls_this.x is never used: nobody_calls_this is not called")


@pytest.mark.usefixtures("restored")
def test_bindings_of_what_only_an_overridden_value_refers_to_are_no_mistake():
  base = write("base.gin", "planted.make = @adam\nadam.learning_rate = @LinearDecay()\n"
                           "LinearDecay.learning_rate = 0.1\nLinearDecay.updates = %N\nN = 7\n"
                           "critic/adam.beta_1 = 0.5\n")
  assert "adam.learning_rate is never used" in train([base])
  assert train([base], "planted.make = @sgd") == ""
  # A mistyped scope is still a mistake.
  write("more.gin", "include 'base.gin'\nplanted.make = @sgd\ncritik/adam.beta_2 = 0.5\n")
  assert train(["more.gin"]) == (
      "more.gin:3: critik/adam.beta_2 is never used: adam is not called by the end of the first "
      "step. Did you mean 'critic'?")
