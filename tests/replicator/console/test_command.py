"""The exit status of a command, and the line that it prints when it fails."""

import pytest

from replicator.console.command import status_of
from replicator.errors import RunFailed, UsageError


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
