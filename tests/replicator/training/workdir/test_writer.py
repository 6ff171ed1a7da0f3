"""The writer: what it takes, and when it hands a line on."""

from replicator.training.workdir.writer import Sink, Writer
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf


class Memory(Sink):
  """Keeps what it gets."""

  def __init__(self):
    self.got = []

  def scalars(self, step, values):
    self.got.append((step, dict(values)))

  def text(self, step, values):
    self.got.append((step, dict(values)))

  def take_back(self, step):
    self.got = [each for each in self.got if each[0] <= step]


def test_all_scalars_of_a_step_make_one_line_which_comes_when_the_step_is_over():
  memory = Memory()
  writer = Writer([memory], lambda: 2.0)
  writer.scalars(1, {"a": 1})
  writer.scalars(1, {"b": tf.constant(2.0)})
  assert memory.got == [] and writer.line(1) == {"a": 1.0, "b": 2.0} and writer.line(2) == {}
  writer.scalars(2, {"a": np.float32(3)})  # A later step hands on the line before it.
  assert memory.got == [(1, {"seconds": 2.0, "a": 1.0, "b": 2.0})]
  writer.flush()
  writer.flush()
  assert memory.got[1:] == [(2, {"seconds": 2.0, "a": 3.0})]


def test_a_sink_that_is_added_later_gets_what_comes_then():
  first, second = Memory(), Memory()
  writer = Writer([first])
  writer.text(1, {"note": "one"})
  writer.add(second)
  writer.text(2, {"note": "two"})
  assert len(first.got) == 2 and second.got == [(2, {"note": "two"})]


def test_after_a_rollback_the_steps_come_again():
  memory = Memory()
  writer = Writer([memory], lambda: 0.0)
  for step in (1, 2):
    writer.scalars(step, {"a": step})
    writer.flush()
  writer.take_back(1)
  writer.scalars(2, {"a": 5})
  writer.flush()
  assert [row["a"] for _, row in memory.got] == [1, 5]


@pytest.mark.parametrize("kind, values, message", [
    ("scalars", {"a": [1.0, 2.0]}, "writer.scalars: the scalar 'a' is a list; use a name and one"),
    ("scalars", {"a": np.zeros(2)}, "writer.scalars: the scalar 'a' is float64 [2]; use a name"),
    ("scalars", {"a": "1"}, "writer.scalars: the scalar 'a' is a str"),
    ("scalars", {"seconds": 1.0}, "use a name other than step and seconds and one number"),
    ("scalars", [1.0], "writer.scalars: the values are a list; pass a dict, such as {'score': 0."),
    ("images", {"a": np.full([2, 2, 3], -0.1)}, "'a' has values from -0.1 to -0.1; scale floats t"),
    ("images", {"a": np.zeros([4, 2, 2, 3])}, "the image 'a' is float64 [4, 2, 2, 3]; use uint8"),
    ("histograms", {"a": "text"}, "writer.histograms: the histogram 'a' is a str; pass an array "),
    ("text", {"a": 3}, "writer.text: the text 'a' is a int; pass a string"),
    ("text", {"": "a"}, "writer.text: the name '' is a str; use a non-empty string")])
def test_input_of_another_form_is_refused(kind, values, message):
  assert message in refusal(getattr(Writer(), kind), 1, values)


@pytest.mark.parametrize("kind, value", [
    ("scalars", 1.0), ("images", np.zeros([2, 2])), ("histograms", [1.0]), ("text", "a")])
def test_a_name_that_comes_twice_in_a_step_is_refused(kind, value):
  write = getattr(Writer(), kind)
  write(1, {"a": value})
  said = refusal(write, 1, {"a": value})
  assert f"writer.{kind}: 'a' is written twice at step 1; rename one" in said
  write(2, {"a": value})
  assert f"writer.{kind}: step 1 comes after step 2" in refusal(write, 1, {"b": value})


def test_a_scalar_that_comes_when_its_line_is_written_is_refused():
  writer = Writer()
  writer.scalars(1, {"a": 1})
  writer.flush()
  assert "the line of step 1 is already written" in refusal(writer.scalars, 1, {"b": 2})
