"""Values of a configuration that nothing uses."""

import replicator
from replicator import UsageError
from replicator.app import config
from replicator.configuration import checks, operative, statements
from tests.replicator.app.configurables import planted, write

import gin
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.mark.parametrize("binding, calls, reason", [
    ("planted.rate = 1.0", {"": "count"}, "the program gives planted its own rate"),
    ("planted.rate = 1.0", {}, "planted is not called by the end of the first step"),
    ("microbatch.n = 2", {}, "compute the gradients of the step in minimize or in "),
    ("a/planted.rate = 1.0", {"": "rate"}, "not called in the scope 'a'. It is called outside of"),
    ("a/planted.rate = 1.0", {"b/c": "rate", "b": "rate"}, "It is called in the scopes b, b/c"),
    ("planted.rate = 1.0", {"a/b": "rate"}, None),
    ("a/planted.rate = 1.0", {"a/b": "rate"}, None),
    ("a/planted.rate = 1.0", {"ab": "rate"}, "in the scope 'a'"),
    ("a/b/planted.rate = 1.0", {"a": "rate"}, "in the scope 'a/b'")])
def test_a_value_has_no_effect_for_a_reason(binding, calls, reason):
  config.parse([], [binding])
  (read,) = statements.last_read()
  called = {(scope, read.selector): {name: 1} for scope, name in calls.items()}
  found = [str(each) for each in checks.unused([read], called)]
  assert found == [] if reason is None else reason in found[0]


@pytest.mark.parametrize("scope, is_refused", [
    ("critick", True), ("crit", True), ("a_critix", False), ("other", False), ("critic", False)])
def test_a_misspelled_scope_is_refused_before_any_evaluation(scope, is_refused):
  config.parse([], [f"{scope}/planted.rate = 1.0"])
  with gin.config_scope("critic"):
    planted(given=1)
  try:
    operative.check_scopes()
  except UsageError as refused:
    assert is_refused and f"{scope}/planted.rate is never used" in str(refused)
  else:
    assert not is_refused


def train(files: list[str], *bindings: str, evaluate=None, rate: dict | None = None) -> str:
  """The one-line error after the first step, or "" if there is none."""
  def step() -> dict:
    with gin.config_scope("critic"):
      return {"loss": tf.constant(planted(given=1, **rate or {}))}

  config.parse(files, ["train.steps = 2", "train.checkpoint_every = 0", *bindings])
  try:
    replicator.train(lambda: step, None, evaluate, workdir="run")
  except UsageError as raised:
    return str(raised).splitlines()[0]
  return ""


def test_values_that_nothing_used_are_reported_after_the_first_step():
  lines = ["include 'base.gin'", "", "critick/planted.rate = 1.0", "critic/planted.kind = 'b'",
           "critic/more/planted.count =\\\n   3", "nobody_calls_this.x = 2",
           "train.eval_every = 0", "planted.rate = 2.0", "critic/planted.count = 4"]
  reported = train([write("base.gin", "planted.flag = True\ntrain.seed = 1\n"),
                    write("wrong.gin", "\n".join(lines) + "\n")], "nobody_calls_this.x = 3",
                   rate={"kind": "a"})
  assert reported.split(" (and ") == [
      "wrong.gin:3: critick/planted.rate is never used: planted is not called in the scope "
      "'critick'. Did you mean 'critic'? It is called in the scopes critic",
      "wrong.gin:4: critic/planted.kind, wrong.gin:5: critic/more/planted.count, "
      "--gin_param: nobody_calls_this.x)"]


@pytest.mark.parametrize("evaluate, bindings, message", [
    (None, ["nobody_calls_this.x = 1"], "--gin_param: nobody_calls_this.x is never used"),
    # Without an evaluation, nobody knows which values it would use.
    (lambda step: None, ["nobody_calls_this.x = 1", "train.eval_every = 0"], ""),
    (lambda step: None, ["critick/planted.rate = 1.0", "train.eval_every = 0"], "'critick'"),
])
def test_a_value_that_only_a_later_evaluation_may_use_is_a_warning(
    evaluate, bindings, message, capsys):
  reported = train([], *bindings, evaluate=evaluate)
  assert message in reported and bool(message) == bool(reported)
  said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
  assert said == [] if message else said[0].startswith(
      "warning: --gin_param: nobody_calls_this.x is never used: nobody_calls_this is not called")


def test_bindings_of_what_only_an_overridden_value_refers_to_are_no_mistake():
  base = write("base.gin", "planted.make = @adam\nadam.learning_rate = @linear()\n"
                           "linear.initial = 0.1\nlinear.end = %N\nN = 7\n"
                           "critic/adam.beta_1 = 0.5\n")
  assert "adam.learning_rate is never used" in train([base])
  assert train([base], "planted.make = @sgd") == ""
  # What stands after the override is meant for it.
  assert "--gin_param: adam.beta_2 is never used" in train(
      [base], "planted.make = @sgd", "adam.beta_2 = 0.5")
  # A mistyped scope is still a mistake.
  write("more.gin", "include 'base.gin'\nplanted.make = @sgd\ncritik/adam.beta_2 = 0.5\n")
  assert train(["more.gin"]) == (
      "more.gin:3: critik/adam.beta_2 is never used: adam is not called by the end of the first "
      "step. Did you mean 'critic'?")
