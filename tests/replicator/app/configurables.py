"""Configurables for the tests of gin files, and what one may do with such files."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from replicator.app import config
from tests.programs import two_networks  # noqa: F401  (for gin)
from tests.programs.refusals import refusal

import gin


@gin.configurable(denylist=["given"])
def planted(rate: float = 0.1, count: int = 1, flag: bool = False, kind: Literal["a", "b"] = "a",
            sizes: Sequence[int] = (), names: Mapping[str, float] | None = None,
            make: Callable[[], object] | None = None, pair: tuple[int, int] = (1, 2),
            anything=None, given: int = 0) -> float:
  """A configurable in which the tests make mistakes."""
  return rate


@gin.configurable
def nobody_calls_this(x: int = 0) -> None:
  """A configurable that no test calls."""


@gin.configurable
def takes_nothing() -> None:
  """A configurable without parameters."""


@gin.configurable
def takes_any(**options) -> dict:
  """A configurable whose parameters nobody knows."""
  return options


@gin.configurable(allowlist=["shown"])
def partly_open(shown: int = 1, hidden: int = 2) -> int:
  """A configurable of which gin files set a part."""
  return shown + hidden


gin.constant("test_config.HALF", 0.5)


def write(name: str, text: str) -> str:
  """Writes a file in the working directory; returns its name."""
  path = pathlib.Path(name)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  return name


def value(name: str):
  return gin.query_parameter(name)


def error(files: list[str], *bindings: str) -> str:
  """The one-line error for a mistake in some files and bindings."""
  return refusal(config.parse, files, bindings)
