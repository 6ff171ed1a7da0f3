"""The exit status of a command, and the line that it prints when it fails."""

import pytest

from replicator.console.exit_status import exit_status
from replicator.errors import RunFailed, UsageError


def fails(error: BaseException):
  def run() -> int:
    raise error
  return run


def test_the_status_of_the_command_is_returned(capsys):
  assert exit_status(lambda: 42) == 42
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error, status, line", [
  (UsageError("--steps=0: write more\nIn call to configurable"), 2, "--steps=0: write more"),
  (RunFailed("the loss is not finite"), 1, "the loss is not finite"),
  (KeyboardInterrupt(), 130, "interrupted"),
  (ZeroDivisionError("division by zero"), 1, "it divided")])
def test_an_error_is_one_line_and_a_status(error, status, line, capsys):
  assert exit_status(fails(error), describe=lambda _: "it divided") == status
  assert capsys.readouterr().err == f"error: {line}\n"


def test_the_line_begins_with_the_prefix(capsys):
  assert exit_status(fails(UsageError("no command")), prefix="launch") == 2
  assert capsys.readouterr().err == "launch: no command\n"


def test_an_unexpected_error_is_raised_unless_it_is_described():
  with pytest.raises(ZeroDivisionError, match="by zero"):
    exit_status(fails(ZeroDivisionError("by zero")))
