"""The defaults of gin and of the interface, where a program or a gin file sets nothing.

A run that does not bind a parameter trains otherwise once its default is another. So another one
is a decision: write it to `defaults.txt` and to the changelog too.
"""

import importlib
import inspect
import pathlib
import pkgutil

import gin

import experiments
import models
import replicator
from replicator.configuration.configurables import defaults
from replicator.configuration.gin_internals import registry

EXPECTED = dict(line.split(" = ", 1) for line in (
    pathlib.Path(__file__).with_name("defaults.txt").read_text().splitlines()))


def in_words(value: object) -> str:
  return "REQUIRED" if value is gin.REQUIRED else getattr(value, "__name__", repr(value))


def found() -> dict[str, str]:
  """The defaults of everything that has some, by name."""
  for package in (models, experiments):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
      importlib.import_module(module.name)
  packages = ("replicator", "models", "experiments")
  values = {name: defaults(each) for name, each in registry().items()
            if name.partition(".")[0] in packages}
  for name in replicator.__all__:
    public = getattr(replicator, name)
    if callable(public) and public is not replicator.UsageError:
      signature = inspect.signature(public).parameters.values()
      values.setdefault(f"replicator.{name}", {
          each.name: each.default for each in signature if each.default is not each.empty})
  return {f"{name}.{parameter}": in_words(value) for name, each in sorted(values.items())
          for parameter, value in each.items()}


def test_a_default_is_what_it_always_was():
  now = found()
  assert {name: now.get(name) for name in EXPECTED} == EXPECTED
