"""The frame of a command: its flags, its name, its exit status, and the line on its failure."""

import importlib.machinery
import sys

from replicator.console import command
from replicator.console.command import Parser, status_of
from replicator.errors import RunFailed, UsageError
from tests.programs.refusals import refusal

import pytest

# ---- Exit status ---------------------------------------------------------------------------------


def fails(error: BaseException):
  def work(words: list[str]) -> int:
    raise error
  return work


def test_the_status_of_the_command_is_returned(capsys):
  assert status_of(len, ["--a", "--b"]) == 2
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error, status, line", [
  (UsageError("--steps=0: write more\nIn call to configurable"), 2, "--steps=0: write more"),
  (RunFailed("the loss is not finite"), 1, "the loss is not finite"),
  (KeyboardInterrupt(), 130, "interrupted"),
  (ZeroDivisionError("division by zero"), 1, "it divided")])
def test_an_error_is_one_line_and_a_status(error, status, line, capsys):
  assert status_of(fails(error), [], lambda _: "it divided") == status
  assert capsys.readouterr().err == f"error: {line}\n"


def test_debug_shows_the_traceback_of_a_command_that_has_the_flag(capsys):
  for describe, beginning in ((str, "Traceback"), (None, "launch: no command")):
    assert status_of(fails(UsageError("no command")), ["--debug"], describe, "launch") == 2
    err = capsys.readouterr().err
    assert err.startswith(beginning) and err.endswith("launch: no command\n")


def test_an_unexpected_error_is_raised_unless_it_is_described():
  with pytest.raises(ZeroDivisionError, match="by zero"):
    status_of(fails(ZeroDivisionError("by zero")), [], describe=None)


# ---- Flags ---------------------------------------------------------------------------------------


def parser(**options) -> Parser:
  made = Parser(prog="python -m program", **options)
  made.add_configuration()
  made.add_argument("--workers", type=int)
  return made


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
  ("experiments.sngan", ["python", "-m", "experiments.sngan"], "sngan"),
  ("replicator.doctor.__main__", ["replicator", "doctor"], "doctor"),  # A command.
  (None, ["python", "my experiments/gan.py"], "gan")])
def test_the_program_is_named_as_it_was_typed(module, words, experiment, monkeypatch):
  spec = module and importlib.machinery.ModuleSpec(module, None)
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
  monkeypatch.setattr(sys, "argv", ["my experiments/gan.py"])
  assert command.program() == words
  assert command.experiment() == experiment
