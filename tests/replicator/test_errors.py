"""The one line of an error: its cause, and the name that was meant."""

import json
import os
import pathlib
import re

from replicator import errors
from replicator.errors import Preempted, UsageError, chain_of, first_line, nearest

import numpy as np
import pytest


@pytest.mark.parametrize("word, names, meant", [
    ("mirored", ["default", "mirrored", "tpu"], "mirrored"),
    ("xyz", ["default", "mirrored"], None), ("mirrored", [], None),
    ("Digit", ["digits", "Digits"], "Digits"), ("digit", ["digits", "Digits"], "digits"),
    ("ADAM", ["adamax", "adam"], "adam"),
    ("lr", ["lru", "learning_rate"], "learning_rate"), ("l", ["learning_rate", "level"], None)])
def test_the_name_that_was_meant_is_the_most_similar_one(word, names, meant):
  assert nearest(word, iter(names)) == (f" Did you mean '{meant}'?" if meant else "")


def raised(first: Exception, then: Exception) -> Exception:
  """The second error, raised while the first one was handled."""
  try:
    try:
      raise first
    except Exception:
      raise then  # noqa: B904
  except Exception as error:
    return error


@pytest.mark.parametrize("first, then, is_replaced", [
    (ValueError("of the user"), ValueError("of the user\n  In call to configurable 'a'"), True),
    (UsageError("write b"), ValueError("Exception encountered when calling Dense.call()."), True),
    (KeyError("x"), KeyError("Exception encountered when calling Dense.call()."), True),
    (UsageError("write b"), ValueError("in user code:\n\n  write b"), True),
    (UnicodeError(), TypeError("UnicodeError.__init__() missing 4 arguments"), True),
    (ValueError("of the user"), ValueError("another"), False),
    (ValueError("of the user"), RuntimeError("of the user, who"), False),
    (ValueError(), ValueError("another"), False)])
def test_the_cause_is_behind_an_error_that_stands_in_its_place(first, then, is_replaced):
  error = raised(first, then)
  assert chain_of(error) == ([then, first] if is_replaced else [then])


def test_the_first_line_is_that_of_the_cause():
  assert first_line(UsageError("\n  write b\nand more")) == "write b"
  assert first_line(ZeroDivisionError()) == "ZeroDivisionError"
  assert first_line(raised(UsageError("write b"), RuntimeError("in user code: x"))) == "write b"
  assert first_line(Preempted(7)) == "stopped at step 7, checkpoint saved"


def test_the_files_of_the_user_are_those_of_nobody_else(tmp_path):
  packages = tmp_path / "dist-packages" / "step.py"
  packages.parent.mkdir()
  packages.touch()
  for file in (json.__file__, np.__file__, str(packages)):
    assert errors.is_foreign(file) and not errors.is_of_user(file)
  assert not errors.is_foreign(errors.__file__) and not errors.is_of_user(errors.__file__)
  assert errors.is_of_user(__file__)
  assert not errors.is_of_user(os.path.join(os.path.dirname(__file__), "no_such_file.py"))


def test_who_stands_outside_the_engine_takes_the_public_usage_error():
  files = [file for room in ("models", "experiments", "benchmarks")
           for file in pathlib.Path(errors.ENGINE).parent.joinpath(room).rglob("*.py")]
  assert files
  assert [str(file) for file in files
          if re.search(r"from replicator\.errors import.*\bUsageError", file.read_text())] == []


def test_a_notebook_shows_one_line():
  class PlacedError(UsageError):
    pass

  class _PlacedError(PlacedError):
    pass

  assert _PlacedError("a.b = 1: is wrong\n  more")._render_traceback_() == [
      "PlacedError: a.b = 1: is wrong"]
  assert Preempted(3)._render_traceback_() == ["Preempted: stopped at step 3, checkpoint saved"]
