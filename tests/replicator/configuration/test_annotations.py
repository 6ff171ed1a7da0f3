"""Values that an annotation admits, and values that it does not."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, Union

from replicator import UsageError
from replicator.app import config
from replicator.configuration import annotations

import gin
import keras
import numpy as np
import pytest

Number = TypeVar("Number", int, float)


class HasSize(Protocol):
  size: int


@dataclasses.dataclass
class Settings:
  """An object that gin cannot write down."""

  size: int = 1


@gin.configurable
def make_settings() -> Settings:
  return Settings()


@gin.configurable
def make_anything():
  return Settings()


@gin.configurable
def make_count() -> int:
  return 1


@gin.configurable
class Worker:
  """A class whose objects can be called."""

  def __call__(self) -> int:
    return 1


LITERALS = [  # An annotation, values of its type, and others.
    (float, [1.0, 1, -2], ["1", None, True, [1.0]]),
    (int, [1, -1], [1.0, True, "1", None]),
    (bool, [True, False], [1, 0, "True", None]),
    (str, ["", "x"], [1, None, ["x"], b"x"]),
    (type(None), [None], [0]),
    (Union[int, None], [1, None], [1.0, "None"]),  # noqa: UP007
    (float | None, [1, None], ["x"]),
    (int | str, [1, "x"], [1.5, None]),
    (Literal["a", 1], ["a", 1], ["b", True, 1.0, None]),
    (list[int], [[1], (1, 2), []], [[1.0], "12", 1, {1: 2}]),
    (tuple[int, int], [(1, 2), [1, 2]], [(1,), (1, 2, 3), (1, "2")]),
    (tuple[float, ...], [(), (1, 2.0)], [("1",), 1.0]),
    (tuple, [(1, "x")], ["x"]),
    (Sequence[str], [["a"], ("a",)], ["a", [1]]),
    (Iterable[int], [[1]], [1, "1"]),
    (set[int], [[1, 2]], ["x"]),
    (dict[str, int], [{"a": 1}, {}], [{"a": "b"}, {1: 1}, [("a", 1)]]),
    (Mapping, [{1: 2}], [[1]]),
    (Sequence[Sequence[int]], [[[1], [2]]], [[1]]),
    (np.ndarray, [1.0, [1, 2]], ["x"]),
    (pathlib.Path, [], ["x", 1]),
    (Callable[[], int], [], ["x", 1, None]),
    (type[Settings], [], ["x"]),
    (Settings, [], [1, "x", None]),
    (Any, [1, "x", None], []), (object, [1, "x"], []), (Number, [1, "x"], []),
    (HasSize, [1, "x"], []),
]
REFERENCES = [
    (Callable[[], Settings], ["@make_settings", "@make_anything", "@make_anything()"],
     ["@make_settings()", "@make_count", "@Worker", "@Worker()"]),
    (Callable[[], Worker], ["@Worker", "@make_anything()"], ["@Worker()", "@make_count"]),
    (Callable[[], int], ["@Worker()", "@make_count"], ["@Worker", "@make_count()"]),
    (Callable[[], int | Worker], ["@Worker", "@make_count"], ["@Worker()", "@make_settings"]),
    (Callable[..., HasSize], ["@make_settings", "@Worker"], []),
    (Callable[[int], np.ndarray] | None, ["@make_anything"], ["@make_settings"]),
    (Callable, ["@adam", "@linear", "@make_anything()"], ["@adam()"]),
    (type, ["@Worker"], []),
    (Settings, ["@make_settings()", "@make_anything()"],
     ["@make_settings", "@Worker()", "@adam()"]),
    (Settings | None, ["@make_settings()"], ["@make_settings"]),
    (float, ["@make_anything()", "@make_count()"], ["@adam", "@make_settings()", "@make_settings"]),
    (int, ["@make_count()"], ["@make_settings()"]), (str, [], ["@make_count()"]),
    (keras.optimizers.schedules.LearningRateSchedule,
     ["@linear()", "@exponential_decay()"], ["@linear", "@adam()"]),
    (keras.optimizers.Optimizer, ["@adam()"], ["@adam", "@linear()"]),
    (Sequence[Callable], ["[@relu, @tanh]"], ["[@relu, 1]", "@relu"]),
    (HasSize, ["@Worker()", "@Worker"], []), (Any, ["@adam", "@adam()"], []),
]


@pytest.mark.parametrize("table, of", [(LITERALS, lambda value: value),
                                       (REFERENCES, gin.config.parse_value)])
def test_a_value_is_of_an_annotated_type_or_not(table, of):
  for hint, good, bad in table:
    assert [(hint, each) for each in good if not annotations.fits(of(each), hint)] == []
    assert [(hint, each) for each in bad if annotations.fits(of(each), hint)] == []


def test_a_default_may_be_of_another_type_than_the_annotation():
  @gin.configurable("sloppy", module="tests")
  def sloppy(x: int = None, y: str = 0):  # noqa: RUF013
    return x, y

  config.parse([], ["sloppy.x = None", "sloppy.y = 0"])
  assert sloppy() == (None, 0)
  with pytest.raises(UsageError, match="must be str, not bool"):
    config.parse([], ["sloppy.y = False"])  # It equals 0.


def test_an_annotation_that_does_not_exist_at_run_time_admits_everything():
  @gin.configurable("forward", module="tests")
  def forward(x: "NotThere" = 1):  # noqa: F821
    return x

  config.parse([], ["forward.x = 'a'"])
  assert forward() == "a"
