"""A run that starts from another: what it takes, what stays frozen, and what it says about both."""

import json
import pathlib
import shutil

import replicator
from replicator import Replicator, UsageError, replicated
from replicator.step import context
from replicator.step.variables import variables_of
from replicator.training.checkpoints import names
from replicator.training.checkpoints.matching import match
from replicator.training.checkpoints.saver import Saver
from replicator.training.checkpoints.snapshot import Snapshot
from replicator.training.checkpoints.start_from import StartFrom
from tests.programs import two_networks
from tests.programs.logs import rows
from tests.programs.processes import launched
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points, TwoNetworks, network
from tests.replicator.training.checkpoints import runs
from tests.replicator.training.checkpoints.runs import equal, held, saved, within
from tests.replicator.training.runs import SMALL

import keras
import numpy as np
import pytest
import tensorflow as tf

FROZEN = ["critic/layers/dense", "critic/layers/global_batch_norm", "generator/layers/dense"]


def begin(source: pathlib.Path, step, workdir: pathlib.Path = pathlib.Path("none"), /,
          runner: Replicator | None = None, **settings):
  return StartFrom(str(source), **settings).begin(step, runner or Replicator(), workdir)


def save(step, folder: pathlib.Path) -> pathlib.Path:
  """A run that saved a step as it is."""
  runs.save(folder / "checkpoints", step, 1)
  return folder


def train(workdir: pathlib.Path, *bindings: str):
  return runs.train(workdir, *bindings, inputs=Points(), evaluate=two_networks.evaluate)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
  """A run as if it were trained, with checkpoints at 2, 4 and 6, of which that at 4 is the best."""
  workdir = tmp_path_factory.mktemp("source")
  step, draw = TwoNetworks(), np.random.default_rng(0)
  checkpoints = Saver(workdir / "checkpoints", step)
  for number, mean in ((2, 0.1), (4, 0.3), (6, 0.2)):
    for variable in variables_of(step).values():
      variable.assign(tf.cast(draw.uniform(0.5, 1.5, variable.shape), variable.dtype))
    checkpoints.save(number, {}, {"eval/mean": mean})
  checkpoints.wait()
  (workdir / "config.gin").write_text(
      "Checkpoints.keep_best = %NAME\nCheckpoints.best_is = 'max'\nNAME = 'eval/mean'\n")
  return workdir


# ---- Taking -------------------------------------------------------------------------------------


def test_networks_and_averages_are_taken_and_nothing_else(source):
  runner = Replicator("mirrored", logical_cpus=2)
  with runner.scope():
    step = TwoNetworks()
  fresh = {path: v.numpy() for path, v in variables_of(step).items()}
  facts, lines = begin(source, step, runner=runner)
  assert equal(held(step), saved(source)) == held(step).keys()
  for value in (step.generator.layers[1].moving_mean.value, step.generator.layers[0].kernel.value):
    copies = [copy.numpy() for copy in runner.strategy.experimental_local_results(value)]
    assert all(np.array_equal(copy, copies[0]) for copy in copies)
  others = fresh.keys() - names.names_of(step).keys()
  assert any(path.startswith("optimizers/") for path in others)
  for path in others:
    np.testing.assert_array_equal(variables_of(step)[path].numpy(), fresh[path], err_msg=path)
  assert lines == [f"start from  {source}, step 6: critic (7 variables), generator (7 variables)"]
  assert facts["taken"] == {"generator": 7, "critic": 7}
  assert facts["step"] == 6 and len(facts["checkpoint_sha256"]) == 64


def test_a_step_of_the_run_is_chosen(source):
  for given, expected in ((2, 2), ("best", 4)):
    facts, _ = begin(source, step := TwoNetworks(), step=given)
    assert facts["step"] == expected
    assert equal(held(step), saved(source, expected)) == held(step).keys()


def test_networks_are_chosen(source):
  before = held(step := TwoNetworks())
  begin(source, step, networks=["critic"])
  assert equal(held(step), saved(source)) >= within(before, "critic/")
  assert equal(held(step), before) >= within(before, "generator/layers/dense/")


@pytest.mark.parametrize("averaged", [False, True])
def test_networks_take_the_weights_of_others_or_their_averages(averaged, source):
  class Distilled(TwoNetworks):
    def __init__(self):
      super().__init__()
      self.teacher = network(3)

  step, before = Distilled(), saved(source)
  facts, _ = begin(source, step, networks={"teacher": "generator", "generator": "generator"},
                   averaged=averaged)
  assert facts["taken"] == {"teacher": 7, "generator": 7} and not facts["not_taken"]
  after = held(step)
  for name in within(after, "teacher/", "generator/"):
    other = f"generator/{name.partition('/')[2]}"
    average = f"average of {other}"
    taken = before[average] if averaged and average in before else before[other]
    np.testing.assert_array_equal(after[name], taken, err_msg=name)
    if average in after:
      np.testing.assert_array_equal(after[average], before[average])


def test_what_does_not_fit_is_left_and_named(source):
  before = held(step := TwoNetworks(critic_width=2))
  facts, lines = begin(source, step)
  left = {"critic/layers/dense_1/kernel": "was float32 [4, 1] and is float32 [4, 2]",
          "critic/layers/dense_1/bias": "was float32 [1] and is float32 [2]"}
  assert facts["not_taken"] == left
  assert lines[0].endswith("critic (5 of 7 variables), generator (7 variables)")
  assert set(lines[1:]) == {f"not taken   {name} {why}" for name, why in left.items()}
  assert equal(held(step), before) >= left.keys()
  assert equal(held(step), saved(source)) == held(step).keys() - left.keys()


def test_another_precision_may_take_the_weights(source, set_precision):
  set_precision("float64")
  begin(source, step := TwoNetworks())
  before, after = saved(source), held(step)
  for name, value in after.items():
    assert value.dtype == np.float64
    np.testing.assert_array_equal(value, before[name].astype(np.float64))


def test_variables_of_no_network_are_named(source):
  class Counting(TwoNetworks):
    def __init__(self):
      super().__init__()
      self.pool = {"mean": tf.Variable(1.0), "count": tf.Variable(2.0)}

  assert begin(source, Counting())[1][1:] == ["not taken   pool is not in a network"]


class Statistics(tf.Module):
  """What networks see through."""

  def __init__(self, size: int):
    super().__init__()
    self.frozen = False
    self.mean, self.count = replicated.variable(np.zeros([size])), replicated.variable(0.0)

  def taken_with_networks(self) -> dict[str, tf.Variable]:
    return {"mean": self.mean, "count": self.count}


class Seeing(TwoNetworks):
  """Its networks see through statistics."""

  def __init__(self, size: int = 3):
    super().__init__()
    self.statistics = Statistics(size)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory) -> pathlib.Path:
  step = Seeing()
  step.statistics.mean.assign([1.0, 2.0, 3.0])
  step.statistics.count.assign(7.0)
  return save(step, tmp_path_factory.mktemp("seeing"))


@pytest.mark.parametrize("networks", [None, ["critic"]])
@pytest.mark.parametrize("frozen", [None, {"critic": 1}])
def test_statistics_come_with_the_networks_that_see_through_them(networks, frozen, seeing):
  facts, lines = begin(seeing, step := Seeing(), networks=networks, frozen=frozen)
  assert step.statistics.mean.numpy().tolist() == [1.0, 2.0, 3.0]
  assert step.statistics.count.numpy() == 7.0 and facts["taken"]["statistics"] == 2
  assert step.statistics.frozen == bool(frozen) and "statistics (2 variables)" in lines[0]
  assert not facts["not_taken"]


def test_statistics_are_taken_as_a_whole_or_not(seeing, source):
  facts, _ = begin(seeing, step := Seeing(4))
  assert not step.statistics.mean.numpy().any() and step.statistics.count.numpy() == 0.0
  assert facts["not_taken"] == {"statistics/mean": "was float64 [3] and is float64 [4]"}
  assert begin(source, Seeing())[0]["not_taken"] == {"statistics": "is not in the other run"}
  assert begin(seeing, TwoNetworks())[0]["not_taken"] == {"statistics": "is only in the other run"}


def test_statistics_that_a_run_cannot_use_are_refused_with_its_line(seeing):
  class Large(Statistics):
    def check_taken(self) -> None:
      if self.count.numpy() > 5.0:
        raise UsageError("these are too many")

  def large(size: int) -> Seeing:
    step = Seeing(size)
    step.statistics = Large(size)
    return step

  assert refusal(begin, seeing, large(3)) == "these are too many"
  begin(seeing, large(4))  # They are not taken.


# ---- Freezing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("frozen", "expected"), [
    ({"critic": 0, "generator": 2},
     ["generator/layers/dense", "generator/layers/global_batch_norm"]),
    ({"generator": ["*"], "critic": ["layers/dense*"]},
     ["generator", "critic/layers/dense", "critic/layers/dense_1"])])
def test_layers_are_frozen_by_depth_and_by_name(frozen, expected, source):
  facts, lines = begin(source, step := TwoNetworks(), frozen=frozen)
  assert facts["frozen"] == expected
  assert lines[1:] == [f"frozen      {', '.join(expected)}"]
  found = {f"{net}/{name}" for net, value in names.networks_of(step).items()
           for name, variable in names.weights_in(value).items() if not variable.trainable}
  moving = {f"{net}/layers/global_batch_norm/moving_{what}" for net in ("generator", "critic")
            for what in ("mean", "variance")}
  assert found == within(held(step), *(f"{name}/" for name in expected)) | moving


@pytest.fixture(scope="module")
def unbroken(source, tmp_path_factory) -> pathlib.Path:
  """Six steps that started from the other run, with frozen layers."""
  workdir = tmp_path_factory.mktemp("unbroken")
  train(workdir, *started(source, 6))
  return workdir


def started(source: pathlib.Path, steps: int) -> list[str]:
  return [f"train.steps = {steps}", f"train.start_from = '{source}'", "train.log_every = 2",
          "train.eval_every = 2", "train.checkpoint_every = 2",
          "StartFrom.frozen = {'critic': 2, 'generator': ['layers/dense']}",
          "TwoNetworks.optimizer = @adamw"]  # Its weight decay would change every weight.


def test_what_is_frozen_stays_bit_for_bit(source, unbroken):
  before, after = saved(source), saved(unbroken)
  frozen = within(after, *(f"{name}/" for name in FROZEN))
  assert len(frozen) == 6 and frozen <= equal(before, after)
  assert equal(before, after) - within(after, "average of generator/layers/dense/") == frozen
  report = (unbroken / "report.html").read_text()
  assert f"run {source}, step 6, checkpoint_sha256" in report
  facts = json.loads((unbroken / "run.json").read_text())["start_from"]
  assert facts["frozen"] == FROZEN


@pytest.mark.slow
def test_a_resumed_run_takes_nothing_again_and_needs_no_other_run(
    source, unbroken, tmp_path, capsys):
  other = shutil.copytree(source, tmp_path / "other")
  for steps in (2, 4, 6):
    last = train(tmp_path / "run", *started(other, steps))
    shutil.rmtree(other, ignore_errors=True)
  assert capsys.readouterr().out.count("start from") == 1
  assert not last.critic.layers[0].trainable and last.critic.layers[3].trainable
  assert equal(saved(tmp_path / "run"), saved(unbroken)) == saved(unbroken).keys()
  assert rows(tmp_path / "run") == rows(unbroken)
  facts = json.loads((tmp_path / "run" / "run.json").read_text())
  assert facts["start_from"]["run"] == str(other)
  assert not any("start_from" in entry["before"] for entry in facts["resumed"])


def test_a_run_that_resumes_cannot_be_given_other_weights(source, tmp_path):
  run = save(TwoNetworks(), tmp_path / "run")
  before = held(step := TwoNetworks())
  facts, lines = begin(source, step, run)
  assert facts is None and equal(held(step), before) == before.keys()
  assert lines == [
      f"warning: train.start_from = '{source}': nothing is taken, because this run resumes, and "
      "started without it; use another --workdir for a new run"]


def test_a_step_that_is_loaded_is_frozen_and_takes_nothing(monkeypatch):
  monkeypatch.setattr(context.run, "is_loading", True)
  begin(pathlib.Path("gone"), step := TwoNetworks(), frozen={"critic": 1})
  assert not step.critic.layers[0].trainable


# ---- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "line"), [
    ({"run": "/none"}, "train.start_from = '/none': has no checkpoint; use "),
    ({"networks": ["critics"]}, "'critics' is not a network of both runs. Did you mean 'critic'?"),
    ({"networks": {"critics": "critic"}}, "'critics' is not a network of this run. Did you mean"),
    ({"networks": {"critic": "generato"}}, "'generato' is not a network of the other run. Did"),
    ({"frozen": {"encoder": 1}}, "StartFrom.frozen: the step has no network 'encoder'"),
    ({"frozen": {"critic": 4}}, "StartFrom.frozen: 4 layers of 'critic', which has 3: "),
    ({"frozen": {"critic": ["layer/0"]}}, "'critic' has no layer 'layer/0'. Did you mean "),
    ({"networks": ["critic"], "frozen": {"generator": 1}},
     "'generator/layers/dense/kernel' is in a network that is not taken; freeze only weig"),
    ({"networks": []}, "none of its weights fit the networks of this run: ")])
def test_a_mistake_is_one_line(settings, line, source):
  given = {"run": source, **settings}
  assert line in refusal(begin, given.pop("run"), TwoNetworks(), **given)


# ---- Clusters -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "flags"), [
    ("multi_worker_mirrored", ["--workers=2"]), ("parameter_server", ["--workers=2", "--ps=1"])])
def test_every_process_of_a_cluster_takes_the_weights(strategy, flags, source, tmp_path):
  bindings = [*SMALL, *started(source, 4), f"Replicator.strategy = '{strategy}'"]
  done = launched(flags, "tests.programs.two_networks", f"--workdir={tmp_path / 'run'}",
                  bindings=bindings)
  assert done.stdout.count("start from") == 1
  before, after = saved(source), saved(tmp_path / "run")
  frozen = within(after, *(f"{name}/" for name in FROZEN))
  assert frozen <= equal(before, after)
  assert "generator/layers/dense_1/kernel" not in equal(before, after)


# ---- Runs whose networks are others --------------------------------------------------------------


class Longer(TwoNetworks):
  """Its generator has attributes, in another order than it had before, and one more network."""

  class Net(keras.Model):
    def __init__(self, late: bool):
      super().__init__()
      if late:
        self.extra = keras.layers.Dense(2)
        self.extra.build((None, 3))
      self.blocks = [keras.layers.Dense(3) for _ in range(2 + late)]
      for block in self.blocks:
        block.build((None, 3))
      self.built = True

  def __init__(self, late: bool = True):
    tf.Module.__init__(self)
    self.generator = self.Net(late)
    setattr(self, "encoder" if late else "critic", network(1))
    ema = {} if not late else {"ema_decay": 0.5}
    self.optimizers = {"generator": replicator.wrap_optimizer(
        keras.optimizers.SGD(), self.generator.trainable_variables, **ema)}


def test_the_attributes_count_and_not_the_order_and_averages_begin_at_the_weights(tmp_path):
  source = save(Longer(late=False), tmp_path / "source")
  facts, _ = begin(source, step := Longer())
  blocks = {f"generator/blocks/{i}/{name}" for i in (0, 1) for name in ("kernel", "bias")}
  after = held(step)
  assert equal(after, saved(source)) == blocks
  for name in blocks:
    np.testing.assert_array_equal(after[f"average of {name}"], after[name])
  assert facts["not_taken"] == {
      **{f"generator/{path}": "is not in the other run" for path in (
          "blocks/2/kernel", "blocks/2/bias", "extra/kernel", "extra/bias")},
      "encoder": "is not in the other run", "critic": "is only in the other run"}


class Small(tf.Module):
  """A network of one layer."""

  def __init__(self):
    super().__init__()
    self.net = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])


def test_a_variable_with_a_value_for_each_replica_is_matched_by_one_value():
  values = {"net/000": np.zeros([2, 3], np.float32), "net/001": np.zeros([2, 3], np.float32)}
  names = {"net/000": "net/scale", "net/001": "net/bias"}
  taken, left = match({"net": "net"}, {path: tf.Variable(tf.zeros([3])) for path in names},
                      names, Snapshot(values, ["net/000"]), names)
  assert taken == {"net/000": "net/000"}
  assert left == {"net/bias": "was float32 [2, 3] and is float32 [3]"}


def test_a_checkpoint_without_names_is_refused_by_name(tmp_path, monkeypatch):
  more = Small()
  more.extra = tf.Variable(1.0)
  monkeypatch.setattr("replicator.training.checkpoints.saver.names_of", lambda step: {})
  runs.save(tmp_path / "checkpoints", more, 1)
  with pytest.raises(UsageError, match="1 variables do not fit this step: 'extra' is only in the"):
    Saver(tmp_path / "checkpoints", Small()).restore()
  with pytest.raises(UsageError, match=r"none of its weights fit .*: net is not in the other run"):
    begin(tmp_path, Small())


def test_many_lines_are_shortened_in_the_console_alone(tmp_path):
  class Wide(tf.Module):
    def __init__(self, width):
      super().__init__()
      self.net = keras.Sequential([keras.Input([1]), keras.layers.Dense(1), *(
          keras.layers.Dense(width) for _ in range(6))])

  source = save(Wide(2), tmp_path / "source")
  facts, lines = begin(source, Wide(3))
  assert len(facts["not_taken"]) == 12
  assert [line.startswith("not taken") for line in lines] == [False] + [True] * 9
  assert lines[-1] == "not taken   and 4 more, listed in run.json"


def test_the_best_step_of_a_run_without_a_configuration_is_refused(tmp_path):
  source = save(Small(), tmp_path / "source")
  assert f"{source}/config.gin, which names the scalar, cannot be read " in refusal(
      begin, source, Small(), step="best")
