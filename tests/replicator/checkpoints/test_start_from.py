"""A run that starts from another: what it takes, what stays frozen, and what it says about both."""

import json
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import Replicator, UsageError, atomic
from replicator.app import config
from replicator.checkpoints import checkpoint, names
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.checkpoints.start_from import StartFrom
from replicator.layers import batch_norm
from replicator.step import context
from replicator.step.variables import variables_of
from replicator.workdir.reader import TIMES
from tests.programs import two_networks
from tests.programs.two_networks import Points, TwoNetworks, network

ROOT = pathlib.Path(__file__).parents[3]
SMALL = ["train.global_batch_size = 8", "train.log_every = 2", "train.eval_every = 2",
         "train.checkpoint_every = 2"]
HANG_SECONDS = 600

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def train(workdir: pathlib.Path, *bindings: str, step=TwoNetworks):
  config.parse([], [*SMALL, *bindings])
  return replicator.train(step, Points(), two_networks.evaluate, workdir=str(workdir))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
  """A run as if it were trained, with checkpoints at 2, 4 and 6, of which that at 4 is the best."""
  workdir = tmp_path_factory.mktemp("source")
  step, draw = TwoNetworks(), np.random.default_rng(0)
  checkpoints = Checkpoints(workdir / "checkpoints", step)
  for number, mean in ((2, 0.1), (4, 0.3), (6, 0.2)):
    for variable in variables_of(step).values():
      variable.assign(tf.cast(draw.uniform(0.5, 1.5, variable.shape), variable.dtype))
    checkpoints.save(number, {}, {"eval/mean": mean})
  checkpoints.wait()
  (workdir / "config.gin").write_text(
      "Checkpoints.keep_best = %NAME\nCheckpoints.best_is = 'max'\nNAME = 'eval/mean'\n")
  return workdir


def saved(workdir: pathlib.Path, step: int | None = None) -> dict[str, np.ndarray]:
  """The weights and averages of a checkpoint, by name."""
  folder = workdir / "checkpoints"
  number = step or checkpoint.steps_of(folder)[-1]
  named = atomic.facts_of(folder / f"step-{number:08d}")["names"]
  values = checkpoint.read(folder, number)
  return {name: values[path] for path, name in named.items()}


def held(step) -> dict[str, np.ndarray]:
  """Those of a step."""
  variables = variables_of(step)
  return {name: variables[path].numpy() for path, name in names.names_of(step).items()}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> set[str]:
  """The names with the same bits in both."""
  return {name for name in one if name in other and one[name].tobytes() == other[name].tobytes()}


def within(values: dict[str, np.ndarray], *prefixes: str) -> set[str]:
  return {name for name in values if name.startswith(prefixes)}


def begin(source: pathlib.Path, networks, workdir: pathlib.Path = pathlib.Path("none"), /,
          runner: Replicator | None = None, **settings):
  return StartFrom(str(source), **settings).begin(networks, runner or Replicator(), workdir)


# ---- Taking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "devices"), [
    ("default", None), ("mirrored", 2), pytest.param("mirrored", 4, marks=pytest.mark.slow),
    pytest.param("central_storage", 2, marks=pytest.mark.slow)])
def test_networks_and_averages_are_taken_and_nothing_else(strategy, devices, source):
  runner = Replicator(strategy, logical_cpus=devices)
  with runner.scope():
    step = TwoNetworks()
  fresh = {path: v.numpy() for path, v in variables_of(step).items()}
  origin = begin(source, step, runner=runner)
  assert equal(held(step), saved(source)) == held(step).keys()
  for value in (step.generator.layers[1].moving_mean.value, step.generator.layers[0].kernel.value):
    copies = [copy.numpy() for copy in runner.strategy.experimental_local_results(value)]
    assert all(np.array_equal(copy, copies[0]) for copy in copies)
  others = fresh.keys() - names.names_of(step).keys()
  assert {path.rpartition("/")[0].rpartition("_")[0] for path in others} >= {
      "optimizers/generator/keras", "optimizers/critic/keras"}
  for path in others:
    np.testing.assert_array_equal(variables_of(step)[path].numpy(), fresh[path], err_msg=path)
  assert origin.lines == [
      f"start from  {source}, step 6: critic (7 variables), generator (7 variables)"]
  assert origin.facts["taken"] == {"generator": 7, "critic": 7}
  assert origin.facts["step"] == 6 and len(origin.facts["checkpoint_sha256"]) == 64


def test_a_step_of_the_run_is_chosen(source):
  for given, expected in ((2, 2), ("best", 4)):
    origin = begin(source, step := TwoNetworks(), step=given)
    assert origin.facts["step"] == expected
    assert equal(held(step), saved(source, expected)) == held(step).keys()


def test_networks_are_chosen(source):
  before = held(step := TwoNetworks())
  origin = begin(source, step, networks=["critic"])
  assert equal(held(step), saved(source)) >= within(before, "critic/")
  others = within(before, "generator/layers/0", "average of generator/layers/0")
  assert equal(held(step), before) >= others and origin.facts["taken"] == {"critic": 7}


def test_what_does_not_fit_is_left_and_named(source):
  before = held(step := TwoNetworks(critic_width=2))
  origin = begin(source, step)
  left = {"critic/layers/3/kernel": "was float32 [4, 1] and is float32 [4, 2]",
          "critic/layers/3/bias": "was float32 [1] and is float32 [2]"}
  assert origin.facts["not_taken"] == left
  assert origin.lines[0].endswith("critic (5 of 7 variables), generator (7 variables)")
  assert set(origin.lines[1:]) == {f"not taken   {name} {why}" for name, why in left.items()}
  assert equal(held(step), before) >= left.keys()
  assert equal(held(step), saved(source)) == held(step).keys() - left.keys()


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

    def call(self, x, training=False):
      for block in self.blocks:
        x = block(x)
      return x

  def __init__(self, late: bool = True):
    tf.Module.__init__(self)
    self.generator = self.Net(late)
    setattr(self, "encoder" if late else "critic", network(1))
    ema = {} if not late else {"ema_decay": 0.5}
    self.optimizers = {"generator": replicator.wrap_optimizer(
        keras.optimizers.SGD(), self.generator.trainable_variables, **ema)}


def save(step, folder: pathlib.Path, names_too: bool = True) -> pathlib.Path:
  """A run that saved a step as it is; without names, as an earlier version did."""
  checkpoints = Checkpoints(folder / "checkpoints", step)
  if not names_too:
    checkpoints._write = lambda values, facts, write=checkpoints._write: write(
        values, {name: fact for name, fact in facts.items() if name != "names"})
  checkpoints.save(1, {})
  checkpoints.wait()
  return folder


def test_the_attributes_count_and_not_the_order_and_averages_begin_at_the_weights(tmp_path):
  source = save(Longer(late=False), tmp_path / "source")
  origin = begin(source, step := Longer())
  blocks = {f"generator/blocks/{i}/{name}" for i in (0, 1) for name in ("kernel", "bias")}
  after = held(step)
  assert equal(after, saved(source)) == blocks
  for name in blocks:
    np.testing.assert_array_equal(after[f"average of {name}"], after[name])
  assert origin.facts["not_taken"] == {
      **{f"generator/{path}": "is not in the other run" for path in (
          "blocks/2/kernel", "blocks/2/bias", "extra/kernel", "extra/bias")},
      "encoder": "is not in the other run", "critic": "is only in the other run"}


def test_a_checkpoint_without_names_is_taken_by_order_if_the_networks_are_alike(tmp_path):
  step = Longer(late=False)
  source = save(step, tmp_path / "source", names_too=False)
  assert begin(source, like := Longer(late=False)).facts["not_taken"] == {}
  assert equal(held(like), held(step)) == held(step).keys()
  with pytest.raises(UsageError, match="nothing of it fits"):
    begin(source, Longer(), networks=None)


def test_another_precision_may_take_the_weights(source, set_precision):
  set_precision("float64")
  begin(source, step := TwoNetworks())
  before, after = saved(source), held(step)
  for name, value in after.items():
    assert value.dtype == np.float64
    np.testing.assert_array_equal(value, before[name].astype(np.float64))


def test_many_lines_are_shortened_in_the_console_alone(tmp_path):
  class Wide(tf.Module):
    def __init__(self, width):
      super().__init__()
      self.net = keras.Sequential([keras.Input([1]), keras.layers.Dense(1), *(
          keras.layers.Dense(width) for _ in range(6))])

  source = save(Wide(2), tmp_path / "source")
  origin = begin(source, Wide(3))
  assert len(origin.facts["not_taken"]) == 12
  assert [line.startswith("not taken") for line in origin.lines] == [False] + [True] * 9
  assert origin.lines[-1] == "not taken   and 4 more, which run.json names"


def test_variables_of_no_network_are_named(source):
  class Counting(TwoNetworks):
    def __init__(self):
      super().__init__()
      self.pool = {"mean": tf.Variable(1.0), "count": tf.Variable(2.0)}

  assert begin(source, Counting()).lines[1:] == ["not taken   pool is in no network"]


# ---- Freezing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("frozen", "expected"), [
    ({"critic": 2}, ["critic/layers/0", "critic/layers/1"]),
    ({"critic": 0}, []),
    ({"critic": ["layers/[03]"]}, ["critic/layers/0", "critic/layers/3"]),
    ({"generator": ["*"], "critic": ["layers/1"]}, ["generator", "critic/layers/1"])])
def test_layers_are_frozen_by_depth_and_by_name(frozen, expected, source):
  origin = begin(source, step := TwoNetworks(), frozen=frozen)
  assert origin.facts["frozen"] == expected
  assert origin.lines[1:] == [f"frozen      {', '.join(expected)}"] * bool(expected)
  found = {f"{net}/{name}" for net, value in names.networks_of(step).items()
           for name, variable in names.weights_in(value).items() if not variable.trainable}
  moving = {f"{net}/layers/1/moving_{what}" for net in ("generator", "critic")
            for what in ("mean", "variance")}
  assert found == within(held(step), *(f"{name}/" for name in expected)) | moving


@pytest.fixture(scope="module")
def unbroken(source, tmp_path_factory) -> pathlib.Path:
  """Six steps that started from the other run, with frozen layers."""
  workdir = tmp_path_factory.mktemp("unbroken")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr("replicator.workdir.charts.curve", lambda *series: "<svg></svg>")
    train(workdir, *started(source, 6))
  return workdir


def started(source: pathlib.Path, steps: int) -> list[str]:
  return [f"train.steps = {steps}", f"train.start_from = '{source}'",
          "StartFrom.frozen = {'critic': 2, 'generator': ['layers/0']}",
          "TwoNetworks.optimizer = @adamw"]  # Its weight decay would change every weight.


def test_what_is_frozen_stays_bit_for_bit(source, unbroken):
  before, after = saved(source), saved(unbroken)
  frozen = within(after, "critic/layers/0", "critic/layers/1", "generator/layers/0")
  assert len(frozen) == 6 and frozen <= equal(before, after)
  assert equal(before, after) - within(after, "average of generator/layers/0") == frozen
  report = (unbroken / "report.html").read_text()
  assert f"run {source}, step 6, checkpoint_sha256" in report
  facts = json.loads((unbroken / "run.json").read_text())["start_from"]
  assert facts["frozen"] == ["critic/layers/0", "critic/layers/1", "generator/layers/0"]


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
  texts = [(run / "metrics.jsonl").read_text() for run in (tmp_path / "run", unbroken)]
  logs = [[{**json.loads(line), **dict.fromkeys(TIMES, 0)} for line in text.splitlines()]
          for text in texts]
  assert logs[0] == logs[1]
  facts = json.loads((tmp_path / "run" / "run.json").read_text())
  assert facts["start_from"]["run"] == str(other)
  assert not any("start_from" in entry["before"] for entry in facts["resumed"])


def test_a_run_that_resumes_cannot_be_given_other_weights(source, tmp_path):
  run = save(TwoNetworks(), tmp_path / "run")
  before = held(step := TwoNetworks())
  origin = begin(source, step, run)
  assert origin.facts is None and equal(held(step), before) == before.keys()
  assert origin.lines == [
      f"warning: train.start_from = '{source}': nothing is taken, because this run resumes, and "
      "began without it; give a new run another --workdir"]


def test_a_step_that_is_loaded_is_frozen_and_takes_nothing(monkeypatch):
  monkeypatch.setattr(context.run, "is_loaded", True)
  begin(pathlib.Path("gone"), step := TwoNetworks(), frozen={"critic": 1})
  assert not step.critic.layers[0].trainable


# ---- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "line"), [
    ({"run": "/none"}, "train.start_from = '/none': holds no checkpoint; write the workdir of a "
                       "run that has saved one"),
    ({"workdir": "{run}"}, "train.start_from = '{run}': is the workdir of this run; write that of "
                           "another one"),
    ({"step": 5}, "{run}/checkpoints: has no checkpoint of step 5; write one of the steps 2, 4, 6"),
    ({"networks": ["critics"]}, "StartFrom.networks: the step has no network 'critics'. Did you "
                                "mean 'critic'? Its networks are critic, generator"),
    ({"frozen": {"encoder": 1}}, "StartFrom.frozen: the step has no network 'encoder'. Did "
                                 "you mean 'generator'? Its networks are critic, generator"),
    ({"frozen": {"critic": 4}}, "StartFrom.frozen: 4 layers of 'critic', which has 3: layers/0, "
                                "layers/1, layers/3"),
    ({"frozen": {"critic": ["layer/0"]}},
     "StartFrom.frozen: 'critic' has no layer 'layer/0'. Did you mean 'layers/0'? Its layers are "
     "layers/0, layers/1, layers/3, and those inside them"),
    ({"networks": ["critic"], "frozen": {"generator": 1}},
     "StartFrom.frozen: 'generator/layers/0' would stay random, because "
     "'generator/layers/0/kernel' is of a network that is not taken; freeze only what is taken"),
    ({"networks": []}, "train.start_from = '{run}': nothing of it fits the networks of this run: "
                       "StartFrom.networks names none")])
def test_a_mistake_is_one_line(settings, line, source):
  given = {"run": source, "workdir": pathlib.Path("none"), **settings}
  workdir = pathlib.Path(str(given.pop("workdir")).format(run=source))
  with pytest.raises(UsageError) as error:
    begin(given.pop("run"), TwoNetworks(), workdir, **given)
  assert str(error.value) == line.format(run=source)


def test_a_run_of_another_kind_of_step_is_one_line(tmp_path):
  class Other(tf.Module):
    def __init__(self):
      super().__init__()
      self.policy = network(1)

  source = save(Other(), tmp_path / "source")
  for settings, line in [
      ({}, f"train.start_from = '{source}': nothing of it fits the networks of this run: generator "
           "is not in the other run; critic is not in the other run; policy is only in the other "
           "run"),
      ({"networks": ["critic"]},
       f"StartFrom.networks: 'critic' is not in {source}, which has policy"),
      ({"step": "best"}, f"StartFrom.step = 'best': {source}/config.gin, which names the scalar, "
                         "cannot be read ")]:
    with pytest.raises(UsageError) as error:
      begin(source, TwoNetworks(), **settings)
    assert str(error.value).startswith(line)


# ---- Programs -----------------------------------------------------------------------------------


def run(*words: str) -> str:
  done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True,
                        timeout=HANG_SECONDS, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("check", [["--steps=3"], ["--check_resume", "--steps=4"]])
def test_the_doctor_passes(check, source):
  out = run("replicator.doctor", "--experiment=tests.programs.two_networks", *check,
            *(f"--gin_param={binding}" for binding in [*SMALL, *started(source, 6)]))
  assert "DIFFERS" not in out and "FAILED" not in out


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "flags"), [
    ("multi_worker_mirrored", ["--workers=2"]), ("parameter_server", ["--workers=2", "--ps=1"])])
def test_every_process_of_a_cluster_takes_the_weights(strategy, flags, source, tmp_path):
  bindings = [*SMALL, *started(source, 4), f"Replicator.strategy = '{strategy}'"]
  out = run("replicator.launch", *flags, "--", sys.executable, "-m", "tests.programs.two_networks",
            *(f"--gin_param={binding}" for binding in bindings), f"--workdir={tmp_path / 'run'}")
  assert out.count("start from") == 1
  before, after = saved(source), saved(tmp_path / "run")
  frozen = within(after, "critic/layers/0", "critic/layers/1", "generator/layers/0")
  assert frozen <= equal(before, after)
  assert "generator/layers/3/kernel" not in equal(before, after)


# ---- Frozen layers ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [replicator.GlobalBatchNorm,
                                  lambda: replicator.SpectralNorm(keras.layers.Dense(2))])
def test_a_frozen_layer_computes_as_when_it_is_not_training(make):
  x = tf.constant(np.random.default_rng(0).normal(2.0, 3.0, [16, 3]), tf.float32)
  layer = make()
  layer(x, training=True)
  before = [v.numpy() for v in layer.variables]
  layer.trainable = False
  np.testing.assert_array_equal(layer(x, training=True), layer(x, training=False))
  for value, variable in zip(before, layer.variables, strict=True):
    np.testing.assert_array_equal(variable.numpy(), value)
  layer.trainable = True
  layer(x, training=True)
  assert any((value != variable.numpy()).any()
             for value, variable in zip(before, layer.variables, strict=True))


def test_a_frozen_batch_norm_has_its_moving_statistics_as_standing_ones():
  x = tf.constant(np.random.default_rng(0).normal(2.0, 3.0, [16, 3]), tf.float32)
  net = keras.Sequential([keras.Input([3]), batch_norm.GlobalBatchNorm(), keras.layers.Dense(2),
                          batch_norm.GlobalBatchNorm()])
  net.layers[0].trainable = False
  expected = net.layers[0](x)
  with replicator.use_standing_statistics(net, lambda i: net(x, training=True), 2):
    np.testing.assert_array_equal(net.layers[0](x), expected)
    assert abs(float(tf.reduce_mean(net(x)))) < 1e-5  # The other one has those of x.
