"""Which differences of two recordings count, and which cause is blamed for them."""

from replicator.training.checks import diagnosis, inspection
from tests.replicator.doctor.checks import cause, quantities

import keras
import numpy as np
import pytest
import tensorflow as tf


def test_differences_are_relative_to_the_quantity():
  largest, first = diagnosis.compare(
      quantities("loss", a=4.0, b=2.0), quantities("loss", a=4.0, b=2.0 + 1e-8), 1e-9)
  assert largest == first
  assert first.key == (1, "loss", "b") and first.relative == pytest.approx(5e-9, rel=1e-6)
  assert diagnosis.compare(
      quantities("loss", a=4.0), quantities("loss", a=4.0 + 1e-9), 1e-9)[1] is None


def test_the_first_difference_is_not_the_largest():
  one = quantities("loss", 1, a=1.0) | quantities("loss", 2, a=1.0)
  other = quantities("loss", 1, a=1.001) | quantities("loss", 2, a=9.0)
  largest, first = diagnosis.compare(one, other, 1e-9)
  assert (first.key[0], largest.key[0]) == (1, 2)


def test_every_variable_is_judged_by_itself():
  beside = quantities("variable", replay=np.full(30_000, 20_000.0), kernel=[3.0, 4.0])
  one = beside | quantities("variable", scale=1.0)
  found = diagnosis.compare(one, beside | quantities("variable", scale=1.0001), 1e-9)[1]
  assert found.key[2] == "scale" and found.relative == pytest.approx(1e-4)
  assert diagnosis.compare(one, beside | quantities("variable", scale=1 + 1e-10), 1e-9)[1] is None


def test_a_variable_that_passes_through_zero_is_judged_by_its_changes():
  at = lambda step, value: quantities("variable", step, bias=[value, -value])
  before = at(0, 0.0) | at(1, 0.5)
  assert diagnosis.compare(before | at(2, 1e-17), before | at(2, -3e-17), 1e-9)[1] is None
  assert diagnosis.compare(before | at(2, 1e-17), before | at(2, 1e-8), 1e-9)[1] is not None
  rests = before | at(2, 1e-17)  # Its largest change is one of an earlier step.
  assert diagnosis.compare(rests | at(3, 1e-17), rests | at(3, -3e-17), 1e-9)[1] is None
  still = at(0, 1e-17) | at(1, 1e-17)
  assert diagnosis.compare(still, at(0, 1e-17) | at(1, -3e-17), 1e-9)[1] is not None


def test_rounding_noise_beside_gradients_of_the_same_update_agrees():
  noise = quantities("gradient", g__kernel=[1.0, 2.0], g__bias=[1e-17])
  other = quantities("gradient", g__kernel=[1.0, 2.0], g__bias=[-3e-17])
  assert diagnosis.compare(noise, other, 1e-9)[1] is None
  alone = quantities("gradient", h__bias=[1e-17]), quantities("gradient", h__bias=[-3e-17])
  assert diagnosis.compare(*alone, 1e-9)[1] is not None


def test_complex_numbers_differ_in_either_part():
  one = quantities("variable", 0, wave=[1 + 1j]) | quantities("variable", wave=[3 + 4j], number=2j)
  assert diagnosis.compare(one, dict(one), 1e-9)[1] is None
  for other in (4 + 4j, 3 + 5j):
    first = diagnosis.compare(one, one | quantities("variable", wave=[other]), 1e-9)[1]
    # By the largest change in a step, 2 + 3j.
    assert first.key[2] == "wave" and first.relative == pytest.approx(1 / 5)
  other = one | quantities("variable", number=-2j)
  assert diagnosis.compare(one, other, 1e-9)[1].key[2] == "number"


def test_words_are_equal_or_not():
  words = lambda *words: quantities("variable", words=np.array(words, object), name=b"a word")
  one = words(b"cat", b"dog")
  assert diagnosis.compare(one, words(b"cat", b"dog"), 1e-9)[1] is None
  changed = quantities("variable", name=b"a bird")
  for other, name in ((words(b"cat", b"dot"), "words"), (one | changed, "name")):
    first = diagnosis.compare(one, other, 0.1)[1]
    assert first.key[2] == name and first.relative == np.inf
  assert cause(one, changed).startswith("a variable is assigned a value that one replica")


def test_whole_numbers_do_not_hide_the_differences_of_their_neighbors():
  one = quantities("variable", seeds=np.int64(10 ** 9), w=[1.0])
  assert diagnosis.compare(one, {**one, **quantities("variable", w=[1.1])}, 1e-9)[1]
  other = {**one, **quantities("variable", seeds=np.int64(10 ** 9 + 5))}
  assert diagnosis.compare(one, other, 1e-9)[1].key[2] == "seeds"


def test_what_is_missing_or_not_finite_or_of_another_shape_differs():
  for other in ({}, quantities("loss", a=[1.0, np.inf]), quantities("loss", a=[np.nan, 1.0]),
                quantities("loss", a=[1.0]), quantities("loss", a=[1.0, 1.0], b=1.0)):
    assert diagnosis.compare(quantities("loss", a=[1.0, 1.0]), other, 1e-9)[1].relative == np.inf


def test_equal_values_that_are_not_finite_agree():
  same = quantities("loss", a=[np.nan, np.inf])
  assert diagnosis.compare(same, dict(same), 1e-9)[1] is None


GRADIENTS = quantities("gradient", u__w=[1.0, 2.0], u__b=3.0, other__w=5.0)


@pytest.mark.parametrize(("one", "changes", "expected"), [
    (quantities("loss", a=4.0), quantities("loss", a=1.0),
     "a loss summed instead of averaged: the loss 'a' is exactly 1/4 of the reference's"),
    (quantities("loss", a=4.0), quantities("loss", a=16.0),
     "a sum over replicas: the loss 'a' is exactly 4 times as large"),
    (GRADIENTS, quantities("gradient", u__w=[0.25, 0.5], u__b=0.75),
     "a loss summed instead of averaged: all gradients of this update are exactly 1/4"),
    (GRADIENTS, quantities("gradient", u__w=[4.0, 8.0], u__b=12.0),
     "a sum over replicas: all gradients of this update are exactly 4 times as large"),
    (GRADIENTS, quantities("gradient", u__w=[4.0, 8.0]), "a batch-dependent op"),
    (quantities("variable", 0, w=4.0), quantities("variable", 0, w=1.0), "initial weights differ")])
def test_the_same_ratio_everywhere_is_a_sum(one, changes, expected):
  assert cause(one, changes, parts=4).startswith(expected)


def test_examples_that_differ_are_blamed_before_what_the_step_does_with_them():
  one = quantities("batch", x=1.0) | quantities("loss", a=4.0)
  seen = inspection.Evidence(lambda: None)
  seen.draws.append("a Keras Dropout layer at my_step.py:3")
  assert cause(one, quantities("batch", x=2.0) | quantities("loss", a=1.0), seen, 4).startswith(
      "the input: the examples of a global batch depend on the number of replicas or processes;")
  # A large column hides no other.
  one = quantities("batch", id=1e18, x=1.0)
  assert diagnosis.compare(one, one | quantities("batch", x=1.0001), 1e-9)[1].key[2] == "x"


def test_clipping_is_blamed_for_gradients_only():
  seen = inspection.Evidence(lambda: None)
  seen.clips.append("this at my_step.py:3")
  assert cause(GRADIENTS, quantities("gradient", u__b=4.0), seen).startswith(
      "clipping before aggregation: this at my_step.py:3; set wrap_optimizer's clip_norm")
  one = quantities("loss", a=1.0) | GRADIENTS
  changes = quantities("loss", a=1.1) | quantities("gradient", u__b=4.0)
  assert cause(one, changes, seen).startswith("a batch-dependent op")


def test_a_batch_norm_that_never_ran_in_training_is_not_blamed():
  step = tf.Module()
  step.frozen, step.local = (keras.layers.BatchNormalization(name=name) for name in ("a", "b"))
  step.together = keras.layers.BatchNormalization(synchronized=True)
  for layer in (step.frozen, step.local, step.together):
    layer.build([None, 1])
  mean = next(i for i, v in enumerate(step.local.variables) if v is step.local.moving_mean)
  one = quantities("loss", a=1.0)
  for number, moved in ((0, 0.0), (1, 0.5)):
    one |= {(number, "variable", f"{name}/{mean:03d}"): np.array([moved * (name != "frozen")])
            for name in ("frozen", "local", "together")}
  found = cause(one, quantities("loss", a=1.5), inspection.Evidence(step))
  assert found.startswith("local batch norm: ") and "each replica separately (b); use" in found


def test_a_variable_that_one_micro_batch_assigns_is_to_be_returned():
  found = cause(quantities("variable", latest=1.0), quantities("variable", latest=2.0),
                microbatches=True)
  assert found.startswith("a variable is assigned a value that one ")
  assert "return a statistic from microbatch's fn, which averages it" in found
