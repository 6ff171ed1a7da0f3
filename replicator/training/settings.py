"""Checks of the arguments of `train`; each raises a UsageError."""

import inspect
from collections.abc import Callable

from replicator.errors import UsageError
from replicator.step.variables import function_of

_most_steps: int | None = None


def limit_steps(most: int | None) -> None:
  """Ends each run after at most this many steps, whatever `train.steps` is; None for no limit."""
  global _most_steps
  _most_steps = most


def limited(steps: int, steps_per_call: int) -> int:
  """Returns the step after which a run ends, rounded up to whole calls."""
  if _most_steps is None:
    return steps
  return min(steps, -(-_most_steps // steps_per_call) * steps_per_call)


def check_step(step: Callable, has_inputs: bool) -> None:
  """Checks what `make_step` returned."""
  if isinstance(step, type) or not callable(step):
    name = f"the class {step.__name__}" if isinstance(step, type) else type(step).__name__
    raise UsageError("train: make_step returned " + name + "; it must return the step, a function, "
                     "a tf.Module or a keras.Model that is called with a batch")
  if error := _misfit(function_of(step), int(has_inputs)):
    raise UsageError("the step is called with a batch, but takes no argument; write def "
                     "__call__(self, batch), or pass no inputs to train" if has_inputs else
                     "the step takes an argument, but train has no inputs to call it with; pass "
                     "inputs to train, or write def __call__(self)") from error


def batches_of(step: Callable) -> int:
  """Returns a step's `batches`: how many batches of `train.global_batch_size` it takes."""
  batches = getattr(step, "batches", 1)
  if not isinstance(batches, int) or batches < 1:
    raise UsageError(f"train: the step's attribute batches is {batches!r}; it must be the number "
                     "of batches that one step takes, a whole number of at least 1")
  return batches


def check_called(name: str, function: Callable | None, *arguments: str) -> None:
  """Checks a function that the loop calls with these arguments; None is allowed."""
  if function is None:
    return
  if not callable(function):
    raise UsageError(f"train: {name} is a {type(function).__name__}; pass a function of "
                     f"({', '.join(arguments)})")
  if error := _misfit(function, len(arguments)):
    raise UsageError(f"train: {name} is called with the {' and its '.join(arguments)}; write "
                     f"def {name}({', '.join(arguments)})") from error


def _misfit(function: Callable, arguments: int) -> TypeError | None:
  """Returns why a function cannot take this many arguments; None if it can, or is unknown."""
  try:
    inspect.signature(function, follow_wrapped=False).bind(*[None] * arguments)
  except TypeError as error:
    return error
  except ValueError:  # It has no signature.
    pass
  return None


def check(**settings: int) -> None:
  """Checks the numeric arguments."""
  for name, value in settings.items():
    lowest = 0 if name in ("eval_every", "checkpoint_every", "seed") else 1
    if not isinstance(value, int) or value < lowest:
      raise UsageError(f"train.{name} = {value!r}: must be a whole number of at least {lowest}")
  if settings["seed"] >= 2 ** 32:
    raise UsageError(f"train.seed = {settings['seed']}: must be below 2 ** 32")
  for name in ("steps", "log_every", "eval_every", "checkpoint_every"):
    value = settings[name]
    if value % settings["steps_per_call"]:
      raise UsageError(f"train.{name} = {value}: must be a multiple of train.steps_per_call = "
                       f"{settings['steps_per_call']}")
