"""The parser of command lines, and the name of the program."""

import importlib.machinery
import sys

import pytest

from replicator.console import flags
from replicator.console.flags import Parser
from replicator.errors import UsageError
from tests.programs.refusals import refusal


def parser(**options) -> Parser:
  made = Parser(prog="python -m program", **options)
  made.add_configuration()
  made.add_argument("--workers", type=int)
  return made


def test_gin_flags_may_be_repeated():
  flags = parser().parse_args(["--gin_file=a.gin", "--gin_file", "b.gin", "--gin_param=x.y = 1"])
  assert flags.gin_file == ["a.gin", "b.gin"]
  assert flags.gin_param == ["x.y = 1"]
  assert not flags.debug


@pytest.mark.parametrize("words, hint", [
  ("--worker=2", " Did you mean '--workers'?"), ("--gin=a", ""),
  ("--worker=2 --seed", " Did you mean '--workers'?"),
  ("a.gin --seed", " Write --gin_file=a.gin"),
  ("--train.steps=10", ' Write --gin_param="train.steps = 10"'),
  ("x/adam.beta_1 = 0.5", ' Write --gin_param="x/adam.beta_1 = 0.5"')])
def test_unknown_words_are_one_line_with_a_hint(words, hint):
  assert refusal(parser().parse_args, words.split()).startswith(
      f"command line: unrecognized arguments: {words}.{hint}")


@pytest.mark.parametrize("word", ["a.gin", "a.b=1", "--seed=1"])
def test_a_program_without_gin_suggests_none(word):
  assert refusal(Parser(prog="python -m program").parse_args, [word]) == (
      f"command line: unrecognized arguments: {word}.")


def test_a_usage_that_is_written_is_part_of_the_error():
  with pytest.raises(UsageError, match=r"'two'; usage: python -m program --workers=N$"):
    parser(usage="%(prog)s --workers=N").parse_args(["--workers=two"])


@pytest.mark.parametrize("module, words, experiment", [
  ("experiments.sngan", ["-m", "experiments.sngan"], "sngan"),
  ("replicator.doctor.__main__", ["-m", "replicator.doctor"], "doctor"),  # A package.
  (None, ["my experiments/gan.py"], "gan")])
def test_the_program_is_named_as_it_was_typed(module, words, experiment, monkeypatch):
  spec = module and importlib.machinery.ModuleSpec(module, None)
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
  monkeypatch.setattr(sys, "argv", ["my experiments/gan.py"])
  assert flags.program() == ["python", *words]
  assert flags.experiment() == experiment
