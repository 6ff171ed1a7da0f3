"""Configuration files and bindings: which value holds, which file is included, and mistakes."""

import pathlib

from replicator.app import config
from replicator.configuration import checks, differences, statements
from replicator.configuration.gin_internals import registry
from tests.replicator.app.configurables import error, value, write

import gin
import pytest

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


# ---- Values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("binding, expected", [
    ("planted.pair = [3, 4]", [3, 4]), ("planted.rate = \\\n  2.5", 2.5),
    ("planted:\n  rate = 0.5\n  count = 2", 0.5), ("takes_any.color = 'red'", "red"),
    ("partly_open.shown = 4", 4)])
def test_a_value_of_the_annotated_type_is_used(binding, expected):
  for files, params in (([write("a.gin", binding + "\n")], []), ([], [binding])):
    config.parse(files, params)
    name = binding.partition(" =")[0] if ":" not in binding[:9] else "planted.rate"
    assert value(name) == expected


def test_an_included_or_earlier_file_may_be_overridden_and_parameters_override_all():
  write("base.gin", "planted.rate = 1.0\nSCALE = 1\nplanted.count = %SCALE\n"
                    "planted.flag = %gin.REQUIRED\n")
  write("main.gin", "include 'base.gin'\nplanted.rate = 2.0\nSCALE = 2\nplanted.flag = True\n")
  config.parse(["main.gin", write("more.gin", "planted.count = 3\n")],
               ["planted.rate = 4.0", "planted.rate = 5.0"])
  assert (value("planted.rate"), value("planted.count")) == (5.0, 3)


def test_a_cell_of_a_notebook_may_define_what_is_configurable_at_any_time(notebook):
  config.parse([], [])
  assert not gin.config_is_locked()


# ---- Files that include files -------------------------------------------------------------------


def test_a_file_is_included_relative_to_the_working_directory():
  write("configs/base.gin", "train.steps = 1\n")
  for files, params in (([write("elsewhere/main.gin", "include 'configs/base.gin'\n")], []),
                        ([], ["include 'configs/base.gin'", "train.seed = 2"])):
    config.parse(files, params)
    assert value("train.steps") == 1


def test_a_file_is_included_relative_to_the_one_that_includes_it_and_not_to_another():
  write("configs/base.gin", "train.steps = 1\n")
  for other in ("base.gin", "other/base.gin", "configs/deep/base.gin"):
    write(other, "train.steps = 99\n")
  write("configs/deep/one.gin", "include '../base.gin'\ntrain.seed = 2\n")
  write("configs/main.gin", "include 'deep/one.gin'\ninclude \"base.gin\"\n")
  config.parse([write("other/main.gin", "include 'base.gin'\n"), "configs/main.gin"], [])
  assert (value("train.steps"), value("train.seed")) == (1, 2)


# ---- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("missing, meant", [
    ("mine/one_fil.gin", "mine/one_file.gin"), ("one_fil.gin", "configs/one_file.gin"),
    ("rare_nam.gin", "configs/deep/rare_name.gin"), ("nowhere.gin", "")])
def test_of_a_missing_file_a_similar_one_beside_it_or_in_configs_is_meant(missing, meant):
  for name in ("mine/one_file.gin", "configs/one_file.gin", "configs/deep/rare_name.gin"):
    write(name, "")
  hint = f". Did you mean '{meant}'?" if meant else ""
  assert error([missing]) == f"--gin_file={missing}: no such file{hint}"


def test_a_configuration_with_a_mistake_leaves_no_statements():
  config.parse([], ["train.steps = 1"])
  assert len(statements.last_read()) == 1
  error([], "train.seed = 1", "train.stepps = 1")
  assert statements.last_read() == []
  with pytest.raises(ValueError, match="no bound parameters"):  # Not even that before it.
    gin.query_parameter("train.seed")


@pytest.mark.parametrize("binding, end", [
    ("planted.rate = 'high'", "must be float, not str"),
    (f"planted.count = '{'x' * 80}'", f" = '{'x' * 56}...: must be int, not str"),
    (f"planted.count = '{'x' * 58}'", f" = '{'x' * 58}': must be int, not str")])
def test_a_value_without_a_remedy_gets_none(binding, end):
  assert error([], binding).endswith(end)


def test_what_belongs_to_gin_is_never_meant():
  assert "'constant'" not in error([], "constnt.x = 1")


# Each text begins in line 3 of a file; the number is the line that the message names.
MISTAKES = [
    ("train.stepps = 1", 3,
     "'train' has no parameter 'stepps'. Did you mean 'steps'? It has: steps,"),
    ("train:\n  steps = 1\n  sead = 2", 5, "no parameter 'sead'. Did you mean 'seed'?"),
    ("train.workdir = 'x'", 3, "'train' gets its 'workdir' from the program"),
    ("a/b/trian.steps = 1", 3, "nothing configurable is called 'trian'. Did you mean 'train'?"),
    ("TwoNetworks.optimizer = @x/Adm()", 3, "'Adm'. Did you mean 'adam'?"),
    ("TwoNetworks.optimizer = @Adam", 3, "is called 'Adam'. Did you mean 'adam'?"),
    ("planted.anything = [\n    @adam,\n    @keras.optimizers.Adm,\n]", 5, "Did you mean 'adam'?"),
    ("planted.rate = 1.0\nplanted.count = 2\nplanted.rate = 2.0", 5,
     "planted.rate is set here and on line 3; keep one"),
    ("planted.rate = %RAET\nRATE = 1.0\nplanted.anything = %RATE", 3,
     "the macro %RAET has no value. Did you mean 'RATE'? Write RAET = ..."),
    ("A = %B\nB = %A\nplanted.rate = %A", 3, "A = %B: the macro refers to itself"),
    ("planted.rate = %RATE\nRATE = 1.0\nRATES = 2.0", 5, "never used. Did you mean 'RATE'?"),
    ("QQQQ = 1", 3, "is never used. Write %QQQQ where you need its value"),
    ("train_steps = 1", 3, "never used. Did you mean 'train.steps'?"),
    ("takes_nothing.x = 1", 3, "has no parameter 'x'. It has no parameters"),
    ("partly_open.hidden = 1", 3, "'partly_open' gets its 'hidden' from the program"),
    ("partly_open.shwon = 1", 3, "no parameter 'shwon'. Did you mean 'shown'? It has: shown"),
    ("planted.count = %test_config.HALF", 3, "= %test_config.HALF: must be int, not float"),
    ("planted.names = none", 3, "planted.names = none (write None)"),
    ("planted.flag = false", 3, "planted.flag = false (write False)"),
    ("TwoNetworks.optimizer = 'adm'", 3, "not str. Did you mean 'adam'?"),
    ("planted.rate = '1e-3'", 3, "must be float, not str. Write 1e-3 without quotes"),
    ("train.steps = 1e4", 3, "must be int, not float. Write 10000"),
    ("planted.kind = 'B'", 3, "must be one of 'a', 'b'. Did you mean 'b'?"),
    ("planted.sizes = [1,\n 2.5]", 3, "must be a list of int, not one with these elements"),
    ("planted.names = {'a': 'b'}", 3, "must be Mapping[str, float] or None"),
    ("COUNT = 2.5\nplanted.count = %COUNT", 4, "planted.count = %COUNT: must be int, not float"),
    ("TwoNetworks.optimizer = 'adam'", 3,
     "must be a function (@name) that returns Optimizer, not str. Write @adam"),
    ("TwoNetworks.optimizer = @adam()", 3, "not the value it returns. Write @adam"),
    ("adam.learning_rate = @linear", 3, "not the function itself. Write @linear()"),
    ("planted.rate = %gin.REQUIRED", 3, "planted.rate must have a value; write planted.rate ="),
    ("include 'nowhere.gin'", 3, "includes 'nowhere.gin', which exists neither"),
    ("include 'wrong.gin'", 3, "includes itself"),
    ("import nowhere_to_be_found", 3, "No module named 'nowhere_to_be_found'"),
    ("train.steps = = 1", 3, "not valid gin: train.steps = = 1"),
    ("train.steps 1", 3, "not valid gin: train.steps 1 (write NAME = VALUE)"),
    ("train.precision = float64", 3, "train.precision = float64 (a string needs quotes"),
    ("train.precision = 'float64", 3, "not valid gin: train.precision = 'fl"),
    ("planted.sizes = [1,\n 2", 3, "not valid gin: planted.sizes = [1, (a bracket or a string"),
    ("planted.sizes = [1,\n 2\nplanted.rate = 2.0", 5,
     "not valid gin: planted.rate = 2.0 (in the value that begins on line "),
]


def test_a_bracket_without_end_names_the_line_where_its_value_begins():
  write("a.gin", "\nplanted.sizes = [1,\n 2\nplanted.rate = 2.0\n")
  assert error(["a.gin"]).endswith(" (in the value that begins on line 2)")


def test_a_mistake_is_reported_with_file_and_line():
  for text, line, message in MISTAKES:
    wrong = write("configs/wrong.gin", f"# A comment.\n\n{text}\n")
    reported = error([wrong])
    assert reported.startswith(f"configs/wrong.gin:{line}: "), text
    assert message in reported, text
    # The same holds for a file that another one includes,
    if "include" not in text:
      main = write("main.gin", "train.seed = 1\ninclude 'configs/wrong.gin'\n")
      assert error([main]) == reported, text
      # and for the command line, where a value may be set twice.
      if "keep one" not in message:
        alone = error([], "train.seed = 1", text)
        assert alone.startswith("--gin_param: ") and message.split("; ")[0] in alone, text


def test_an_imported_module_that_is_no_python_is_an_error(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  write("no_python.py", "x = = 1\n")
  assert error([write("a.gin", "\nimport no_python\n")]) == (
      "a.gin:2: invalid syntax (no_python.py, line 1)")
  write("broken.py", "\nimport os\nos.environ['DATA_FOLDER']\n")
  assert error([write("b.gin", "import broken\n")]) == (
      "b.gin:1: broken.py:3: KeyError: 'DATA_FOLDER'")


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


def test_a_byte_order_mark_is_no_part_of_a_file():
  for name, text in (("mark.gin", "planted.rate = 7.0\n"), ("outer.gin", "include 'mark.gin'\n")):
    pathlib.Path(name).write_text(text, encoding="utf-8-sig")
  config.parse(["outer.gin"], [])
  assert value("planted.rate") == 7.0
  assert differences.written_in("outer.gin") == differences.written_in("mark.gin")


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
  monkeypatch.setattr(checks.command, "experiment", lambda: "own_gan")
  written = write("config.gin", f"{statements.RECORD_HEADER}\nplanted.rate = 1.0\n")
  for files in ([], [written]):  # A run's own record is no file to write into.
    config.parse(files, [])
    assert missing("count", "pair") == (
        "the configuration must set: planted.count, planted.pair; write planted.count = ... with "
        "--gin_param")
  write("configs/other.gin", "# python -m experiments.own_gan --gin_file=configs/other.gin\n")
  write("configs/small.gin", "# python own_gan.py --gin_file=configs/small.gin\n")
  write("configs/third.gin", "# python -m experiments.ungown_gan --gin_file=configs/third.gin\n")
  assert missing("count") == (
      "the configuration must set: planted.count; write --gin_file=F, where F is one of "
      "configs/other.gin, configs/small.gin")
