"""Configuration files and bindings, and mistakes in them."""

import pathlib

import gin
import keras
import pytest

from replicator import UsageError, config
from tests.programs import two_networks  # noqa: F401  (for gin)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  yield
  gin.clear_config()


def write(name: str, text: str) -> str:
  """Writes a file below the working directory; returns its name."""
  path = pathlib.Path(name)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  return name


def value(name: str):
  return gin.query_parameter(name)


def error(files: list[str], *bindings: str) -> str:
  """The one line that tells the mistake in some files and bindings."""
  with pytest.raises(UsageError) as raised:
    config.parse(files, bindings)
  return str(raised.value).splitlines()[0]  # What the command line shows; gin adds others.


# ---- What counts --------------------------------------------------------------------------------


def test_later_files_and_then_parameters_override():
  first = write("1.gin", "train.steps = 1\ntrain.log_every = 1\ntrain.seed = 1\n")
  second = write("2.gin", "train.steps = 2\ntrain.log_every = 2\n")
  config.parse([first, second], ["train.steps = 3", "train.eval_every = 3"])
  assert [value(f"train.{name}") for name in ("seed", "log_every", "steps", "eval_every")] == [
      1, 2, 3, 3]


def test_parsing_again_starts_anew():
  config.parse([], ["train.steps = 1"])
  config.parse([], ["train.seed = 2"])
  assert "steps" not in config.describe()


def test_description_parses_to_the_same():
  write("a.gin", "RATE = 0.5\nSGD.learning_rate = %RATE\nx/wrap_optimizer.clip_norm = 1.5\n"
                 "TwoNetworks.optimizer = @SGD\ntrain.precision = 'float64'\n")
  config.parse(["a.gin"], [])
  described = config.describe()
  assert "x/wrap_optimizer.clip_norm = 1.5" in described
  config.parse([write("b.gin", described)], [])
  assert config.describe() == described


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "SGD"])
def test_optimizers_are_configurable_by_name(name):
  config.parse([], [f"{name}.learning_rate = 0.25", f"two_networks.stop_at = @{name}()"])
  optimizer = value("two_networks.stop_at").scoped_configurable_fn()
  assert type(optimizer) is getattr(keras.optimizers, name)
  assert float(optimizer.learning_rate) == 0.25


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


@pytest.mark.parametrize("other", ["base.gin", "other/base.gin"])
def test_a_file_of_the_same_name_elsewhere_is_not_taken_for_the_included_one(other):
  write(other, "train.steps = 99\n")
  write("other/main.gin", "include 'base.gin'\n" if "/" in other else "")
  write("configs/base.gin", "train.steps = 1\n")
  write("configs/main.gin", "include 'base.gin'\n")
  config.parse(["other/main.gin", "configs/main.gin"], [])
  assert value("train.steps") == 1


def test_a_file_of_the_same_name_one_level_up_is_not_taken_for_the_included_one():
  write("configs/base.gin", "train.steps = 99\n")
  write("configs/deep/base.gin", "train.steps = 1\n")
  write("configs/deep/main.gin", "include 'base.gin'\n")
  write("configs/main.gin", "include 'deep/main.gin'\n")
  config.parse(["configs/main.gin"], [])
  assert value("train.steps") == 1


# ---- Mistakes -----------------------------------------------------------------------------------


def test_a_missing_file():
  assert error(["nowhere.gin"]) == "--gin_file=nowhere.gin: no such file"


def test_a_file_that_includes_a_missing_one():
  write("configs/main.gin", "train.steps = 1\ninclude 'nowhere.gin'\n")
  assert "nowhere.gin" in error(["configs/main.gin"])


def test_a_file_that_includes_itself():
  assert "loop.gin" in error([write("loop.gin", "include 'loop.gin'\n")])


@pytest.mark.parametrize("line, message", [
    ("train.stepps = 1", "'train' has no parameter 'stepps'. Did you mean 'steps'? It has: steps,"),
    ("SNGENERATOR.width = 1", "nothing configurable is called 'SNGENERATOR'."),
    ("trian.steps = 1", "nothing configurable is called 'trian'. Did you mean 'train'?"),
    ("a/b/trian.steps = 1", "nothing configurable is called 'trian'. Did you mean 'train'?"),
    ("TwoNetworks.optimizer = @Adm", "nothing configurable is called 'Adm'. Did you mean 'Adam'?"),
    ("TwoNetworks.optimizer = @x/Adm()", "nothing configurable is called 'Adm'. Did you mean"),
    ("TwoNetworks.optimizer = @keras.optimizers.Adm", "Did you mean 'Adam'?"),
    ("Adam.learning_rat = 1", "'Adam' has no parameter 'learning_rat'. Did you mean 'learning_"),
    ("train.workdir = 'x'", "'train' has denylisted kwarg 'workdir'"),
])
def test_a_name_that_nothing_has(line, message):
  # Files tell the line, also those that others include.
  wrong = write("configs/wrong.gin", f"# A comment.\n\n{line}\n")
  assert error([wrong]).startswith("configs/wrong.gin:3: ")
  assert message in error([wrong])
  told = error([write("configs/main.gin", "train.seed = 1\ninclude 'wrong.gin'\n")])
  assert "configs/wrong.gin:3: " in told and message in told
  told = error([], "train.seed = 1", line)
  assert told.startswith("--gin_param") and message in told


@pytest.mark.parametrize("line", [
    "train.steps = = 1", "train.steps 1", "train.steps = ten", "train.steps = 'ten",
    "train..steps = 1", "train.steps", "a b = 1", "train.steps = 1 2"])
def test_what_is_no_gin(line):
  wrong = write("wrong.gin", f"train.seed = 1\n{line}\n")
  told = error([wrong])
  assert told.startswith("wrong.gin:2: not valid gin: ") and line in told
  told = error([], line)
  assert told.startswith("--gin_param") and line in told


def test_a_bracket_that_is_never_closed():
  told = error([write("wrong.gin", "train.seed = 1\ntrain.steps = [1\n")])
  assert told.startswith("wrong.gin:") and ": not valid gin: " in told
  assert error([], "train.steps = [1").startswith("--gin_param")


def test_a_macro_that_has_no_value():
  told = error([write("wrong.gin", "\nSGD.learning_rate = %RATE\n")])
  assert "RATE" in told and "gin.macro" not in told


def test_a_module_that_is_not_there():
  told = error([write("wrong.gin", "import nowhere_to_be_found\n")])
  assert told.startswith("wrong.gin:1: ") and "nowhere_to_be_found" in told
