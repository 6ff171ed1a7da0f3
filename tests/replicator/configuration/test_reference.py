"""The gin parameters that `--help` of an experiment lists."""

from replicator.app.experiment import run
from replicator.configuration import reference

import gin
import pytest


@gin.configurable(module="described", denylist=["given"])
def described(given: int, rate: float = 0.5, kind: str | None = None, make=dict,
              needed: int = gin.REQUIRED) -> None:
  """Makes something.

  Args:
    given: comes from the program.
    rate: how fast it is made, in words that are
      longer than one line.
    kind: which one.

  Raises:
    ValueError: never.
  """


def test_each_parameter_has_its_default_its_type_and_its_meaning():
  assert reference.parameters_of(__name__).splitlines() == [
      "described: Makes something.",
      "  rate = 0.5  (float)",
      "      how fast it is made, in words that are longer than one line.",
      "  kind = None  (str or None)",
      "      which one.",
      "  make = @dict",
      "  needed = ...  (int)"]


def test_help_of_an_experiment_ends_with_the_parameters_of_its_module(monkeypatch, capsys):
  monkeypatch.setattr(reference, "parameters_of", lambda module: f"those of {module}")
  with pytest.raises(SystemExit) as ended:
    run(lambda workdir: None, ["--help"])
  assert ended.value.code == 0 and capsys.readouterr().out.endswith("those of __main__\n")
