"""Configuration files and bindings: which value holds, and which file is included."""

import gin
import pytest

from replicator.app import config
from replicator.configuration import operative
from tests.replicator.app.configurables import value, write

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


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


def test_imports_are_part_of_the_written_configuration():
  config.parse([write("a.gin", "import tests.programs.two_networks\n")], [])
  assert "import tests.programs.two_networks" in operative.text().splitlines()


def test_a_file_is_included_relative_to_the_one_that_includes_it_and_not_to_another():
  write("configs/base.gin", "train.steps = 1\n")
  for other in ("base.gin", "other/base.gin", "configs/deep/base.gin"):
    write(other, "train.steps = 99\n")
  write("configs/deep/one.gin", "include '../base.gin'\ntrain.seed = 2\n")
  write("configs/main.gin", "include 'deep/one.gin'\ninclude \"base.gin\"\n")
  config.parse([write("other/main.gin", "include 'base.gin'\n"), "configs/main.gin"], [])
  assert (value("train.steps"), value("train.seed")) == (1, 2)
