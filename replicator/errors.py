"""Exceptions that users see as one line, and helpers for writing such lines."""

import difflib
import os
import re
import sysconfig
from collections.abc import Iterable

USAGE_STATUS = 2  # The exit status after a bad command line or configuration.
PREEMPTED_STATUS = 42  # The exit status of a run that was asked to stop, and saved.
_STDLIB = sysconfig.get_paths()["stdlib"]
ENGINE = os.path.dirname(os.path.abspath(__file__)) + os.sep  # The folder of this package.
# The first words of errors that Keras and AutoGraph raise in place of the errors they caught.
_IN_PLACE_OF_ANOTHER = ("Exception encountered when calling ", "in user code:",
                        "Could not automatically infer the output shape")
# TensorFlow's error in place of a UsageError from Python code in an input pipeline.
_IN_A_PIPELINE = re.compile(r"\{\{function_node .*?[}:] UsageError: (.+)")


class OneLineError(Exception):
  """An error that is shown as one line, in a notebook and on the command line."""

  def _render_traceback_(self) -> list[str]:  # IPython's name.
    name = next(each.__name__ for each in type(self).__mro__ if not each.__name__.startswith("_"))
    return [f"{name}: {first_line(self)}"]


class UsageError(OneLineError):
  """An error in the user's input, in one line: what was written, what is wrong, what to write.

  The command line prints only the message and ends with status 2; `--debug` adds a traceback.
  """


class RunFailed(OneLineError):
  """A failure of a run that cannot continue, in one line; the exit status is 1."""


class Preempted(OneLineError):
  """The end of a run that was asked to stop, and saved its state at `step`."""

  def __init__(self, step: int):
    super().__init__(f"stopped at step {step}, checkpoint saved")
    self.step = step


def at_least_one(owner: str, **values: int | None) -> None:
  """Raises a `UsageError` for the first of the owner's parameters below 1; None is allowed."""
  for name, value in values.items():
    if value is not None and value < 1:
      raise UsageError(f"{owner}.{name} = {value}: must be at least 1")


def above_zero(owner: str, **values: float) -> None:
  """Raises a `UsageError` for the first of the owner's parameters that is not above 0."""
  for name, value in values.items():
    if not value > 0:
      raise UsageError(f"{owner}.{name} = {value}: must be above 0")


def from_0_to_1(owner: str, **values: float) -> None:
  """Raises a `UsageError` for the first of the owner's parameters outside [0, 1]."""
  for name, value in values.items():
    if not 0 <= value <= 1:
      raise UsageError(f"{owner}.{name} = {value}: must be from 0 to 1")


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.5) -> str:
  """Returns a hint such as ` Did you mean 'mirrored'?`, or '' if no candidate is similar.

  Names that naturally resemble each other need a higher `cutoff`, up to 1.
  """
  names = list(candidates)
  near = difflib.get_close_matches(word.lower(), {name.lower() for name in names}, 1, cutoff)
  # Among names that differ only in case, take the one whose case matches best.
  alike = difflib.get_close_matches(word, [name for name in names if name.lower() in near], 1, 0.0)
  # `lr` means `learning_rate`.
  short = [name for name in names if "_" in name and word == "".join(
      part[:1] for part in name.split("_"))]
  return f" Did you mean '{(short or alike)[0]}'?" if short or alike else ""


def chain_of(error: BaseException) -> list[BaseException]:
  """Returns the error, the error that it replaced, and so on; the last is the cause.

  gin, Keras, AutoGraph and input pipelines replace errors with their own, with different messages.
  An error that a user raises `from` an earlier one is itself a cause.
  """
  chain = [error]
  while (inner := chain[-1].__context__) and _replaces(chain[-1], inner):
    chain.append(inner)
  if found := _IN_A_PIPELINE.search(str(chain[-1])):
    chain.append(UsageError(found[1]))
  return chain


def _replaces(error: BaseException, inner: BaseException) -> bool:
  message = str(error).lstrip("'\"")  # A KeyError shows its message in quotes.
  # Re-creating an error whose constructor needs more than a message raises a TypeError.
  if message.startswith((*_IN_PLACE_OF_ANOTHER, f"{type(inner).__name__}.__init__() missing ")):
    return True
  if "ExceptionProxy.__init__() takes " in message:  # gin's class of such errors.
    return True
  same = type(error).__name__ == type(inner).__name__
  return same and bool(str(inner)) and str(error).startswith(str(inner))


def first_line(error: BaseException) -> str:
  """Returns the first line of the message of the error's cause; gin appends more lines."""
  cause = chain_of(error)[-1]
  return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def is_foreign(file: str) -> bool:
  """Returns whether a source file belongs to Python or an installed package, not the user."""
  return "site-packages" in file or "dist-packages" in file or _STDLIB in file


def is_of_user(file: str) -> bool:
  """Returns whether a source file exists and is the user's: not foreign, nor in this package."""
  return not file.startswith(ENGINE) and not is_foreign(file) and os.path.isfile(file)
