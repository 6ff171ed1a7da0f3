"""`replicator export`: files of a run's networks that load without this project, by command."""

import dataclasses
import importlib.util
import json
import pathlib
import re
import types

import replicator
from experiments import export
from models.export import card, formats, loading
from models.export.networks import ExportedNetwork, Values, networks_of
from replicator.errors import RunFailed
from replicator.training.workdir import reader
from tests.experiments.test_sample import STEP, saved
from tests.experiments.tiny_gans import build

import gin
import numpy as np
import pytest
import tensorflow as tf

FORMATS = list(formats.SUFFIXES)
WEIGHTS = tf.Variable(np.linspace(-1.0, 1.0, 12).reshape(4, 3), dtype=tf.float32)
INPUT, OUTPUT = Values("observation", (4,), "float32", "a"), Values("action", (3,), "float32", "b")
POLICY = ExportedNetwork("policy", "Acts.", (INPUT,), OUTPUT,
                         replicator.any_batch_size(lambda x: tf.tanh(x @ WEIGHTS)))


# ---- One network --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """A folder with a policy in all formats, and the paths of the files."""
  folder = tmp_path_factory.mktemp("written")
  return folder, formats.write(POLICY, FORMATS, folder)


def test_an_example_is_beside_the_files_and_another_process_computes_it(written, monkeypatch):
  folder, paths = written
  assert [path.name for path in paths] == ["policy", "policy.onnx"]
  assert {path.name for path in folder.iterdir()} == {"policy", "policy.onnx", "policy.npz"}
  with np.load(folder / "policy.npz") as example:
    assert set(example) == {"observation", "expected"}
    np.testing.assert_allclose(example["expected"], np.tanh(example["observation"] @ WEIGHTS),
                               rtol=1e-5, atol=1e-7)
  monkeypatch.chdir(folder)
  assert 0 <= formats.check([pathlib.Path("policy.onnx")])["policy.onnx"] < 1e-6
  source = pathlib.Path(loading.__file__).read_text()
  assert set(re.findall(r"import (\w+)", source)) == {
      "pathlib", "sys", "Any", "numpy", "tensorflow", "onnxruntime"}


def test_names_and_sizes_are_those_of_the_card(written):
  folder, _ = written
  import onnxruntime
  session = onnxruntime.InferenceSession(folder / "policy.onnx")
  assert [(each.name, each.shape) for each in (*session.get_inputs(), *session.get_outputs())] == [
      ("observation", ["n", 4]), ("action", ["n", 3])]
  serve = tf.saved_model.load(str(folder / "policy")).signatures["serving_default"]
  assert serve(observation=np.ones([2, 4], np.float32))["action"].shape == (2, 3)


def loaded_as(results, monkeypatch):
  monkeypatch.setattr(formats, "_loaded", lambda paths: {path.name: results for path in paths})


@pytest.mark.parametrize("change", [
    lambda expected: expected + np.array([2e-6, 0, 0]), lambda expected: expected[:, :2],
    lambda expected: np.full_like(expected, np.nan)])
def test_other_results_are_refused(change, written, monkeypatch):
  _, [path, _] = written
  with np.load(path.with_suffix(".npz")) as example:
    loaded_as(change(example["expected"]), monkeypatch)
  with pytest.raises(RunFailed, match="policy: its output differs from the run"):
    formats.check([path])


def test_a_file_that_does_not_load_is_named(tmp_path):
  formats.write(POLICY, [], tmp_path)
  (tmp_path / "policy.onnx").write_bytes(b"torn")
  with pytest.raises(RunFailed, match=r"^policy\.onnx: \w+: .*; nothing was written"):
    formats.check([tmp_path / "policy.onnx"])


# ---- The networks of a step ---------------------------------------------------------------------


class GAN:
  """A generator whose image is one pixel."""
  num_classes = 0
  latent_dim = 2

  def latents(self, name, shape):
    return tf.zeros(shape)

  def generate(self, z, labels):
    assert labels.shape.rank == 1
    return tf.tanh(z[:, tf.newaxis, tf.newaxis, :1])


def test_a_policy_that_remembers_is_refused():
  agent = types.SimpleNamespace(act=None, actor=None, memory_size=3)
  with pytest.raises(replicator.UsageError, match=r"^SimpleNamespace: its policy is recurrent"):
    networks_of(agent)


@pytest.mark.parametrize("discrete, bounds, found", [
    (False, [-1, 1], 1.0), (True, [None, None], 3.0)])
def test_actions_of_a_policy_keep_to_the_bounds_of_the_card(discrete, bounds, found):
  environments = types.SimpleNamespace(
      action_size=2, observation_dtype="float32", observation_shape=(3,), name="Own-v0", stack=1,
      discrete=discrete, choices=(2,) if discrete else ())
  agent = types.SimpleNamespace(act=lambda seen, noise: tf.fill([len(seen), 2], 3.0),
                                actor=types.SimpleNamespace(environments=environments))
  policy = networks_of(agent)["policy"]
  assert [policy.output.low, policy.output.high] == bounds
  np.testing.assert_array_equal(policy.function(tf.zeros([4, 3])), np.full([4, 2], found))


@pytest.mark.parametrize("attributes", [{}, {"encoder": None}], ids=["no attribute", "None"])
def test_a_gan_without_classes_or_encoder_has_a_generator_of_codes(attributes):
  step = GAN()
  vars(step).update(attributes)
  found = networks_of(step)
  assert list(found) == ["generator"]
  [latents] = found["generator"].inputs
  assert (latents.name, latents.shape) == ("z", (2,))
  assert found["generator"].output.shape == (1, 1, 1)
  [z] = found["generator"].example(3)
  images = found["generator"].function(tf.constant(z))
  np.testing.assert_allclose(images[:, 0, 0], np.tanh(z[:, :1]), rtol=1e-5)


def test_the_generator_of_a_gan_with_classes_takes_each_of_them():
  step = GAN()
  step.num_classes = 3
  _, label = networks_of(step)["generator"].inputs
  assert (label.name, label.shape, label.low, label.high) == ("label", (), 0, 2)


@pytest.mark.parametrize("name", ["sngan", "bigbigan"])
def test_exported_networks_have_averaged_weights(name):
  gan = build(name, "wrap_optimizer.ema_decay = 0.9")
  networks = networks_of(gan)
  results = lambda: [network.function(*map(tf.constant, network.example(2))).numpy()
                     for network in networks.values()]
  before = results()
  for optimizer in gan.optimizers.values():
    for variable in optimizer.variables_updated:
      variable.assign_add(tf.random.normal(variable.shape))
  assert list(networks) == ["generator", "encoder"]
  for found, wanted in zip(results(), before, strict=True):
    np.testing.assert_array_equal(found, wanted)


# ---- The card -----------------------------------------------------------------------------------


def test_the_card_has_the_numbers_of_the_last_evaluation_until_the_step(written, tmp_path):
  _, paths = written
  (tmp_path / "run.json").write_text(json.dumps({
      "experiment": "d4pg", "command": "python a|b", "git_commit": "c0ffee", "git_diff": "x",
      "strategy": "mirrored", "num_replicas": 2, "evaluation": "20 episodes", "seed": 7,
      "machine": {"processor": "EPYC", "cores": 2, "accelerators": []},
      "settings": [["D4PG.noise", "0.2", "a.gin:3"]], "versions": {"keras": "3"}}))
  (tmp_path / "config.gin").write_text("Environments.name = 'Pendulum-v1'\n")
  (tmp_path / "metrics.jsonl").write_text("".join(
      json.dumps({"step": step, "loss": 1.0, **evaluation}) + "\n" for step, evaluation in [
          (10, {"eval/return": -1.5}), (20, {"eval/return": -0.25}), (25, {}),
          (30, {"eval/return": 9.0})]))
  files = [card.File(POLICY, *file, 1e-7) for file in zip(FORMATS, paths, strict=True)]
  text = card.text(reader.read(tmp_path), 25, files)
  for line in (
      "# The policy of a run of d4pg, step 25",
      "| policy | input | `observation` | [n, 4] | float32 | a |",
      "The evaluation of step 20: 20 episodes.", "| return | -0.25 |",
      r"| command | `python a\|b` |", "| data | `'Pendulum-v1'` |", "D4PG.noise = 0.2",
      "| strategy | mirrored; replicas: 2, workers: not recorded |",
      "| commit | `c0ffee` with changes, which `changes.diff` of the run has |",
      "[action] = onnxruntime.InferenceSession('policy.onnx').run(None, "
      "{'observation': observation})"):
    assert line in text.splitlines(), line
  assert "9.0" not in text and "label" not in text


def test_the_card_says_that_no_file_checks_a_label(written, tmp_path):
  label = Values("label", (), "int32", "classes", 0, 9)
  network = dataclasses.replace(POLICY, inputs=(INPUT, label))
  (tmp_path / "run.json").write_text("{}")
  (tmp_path / "config.gin").write_text("")
  text = card.text(reader.read(tmp_path), 25, [card.File(network, "onnx", written[1][1], 1e-7)])
  assert "int32 | classes, in [0, 9] |" in text
  assert "\nn is any number of examples.\nNo file checks a `label`. One out of its bounds" in text


# ---- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flags, line", [
    (["--formats=savedmodel,tflite"],
     "--formats=tflite: choose from savedmodel,onnx"),
    (["--out=."], "--out=.: exists; choose another name, or remove it"),
    (["--step=last"], "command line: argument --step: 'last': must be the step of a checkpoint, "
     "or 'best'."),
    (["--run=nowhere"], "nowhere/run.json: missing; give the workdir of a run")])
def test_a_mistake_is_one_line(flags, line, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert export.main(["--run=run", "--out=out", *flags]) == 2
  assert capsys.readouterr().err == f"error: {line}\n"
  assert not (tmp_path / "out").exists()


def test_a_package_that_is_missing_is_named(capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  assert export.main(["--run=run", "--out=out"]) == 2
  assert capsys.readouterr().err == (
      "error: --formats=onnx: needs the package tf2onnx; run pip install 'replicator[export]', or "
      "use --formats=savedmodel\n")


# ---- As a user does it --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name, names", [("sngan", ["generator", "encoder"]), ("d4pg", ["policy"]),
                                         ("resnet", ["network"])])
def test_a_run_is_exported(name, names, tmp_path, capsys):
  gin.clear_config()
  run = saved(name, tmp_path / "run")
  assert export.main([f"--run={run}", f"--out={tmp_path / 'out'}"]) == 0
  assert f"{', '.join(names)} of {run}, step {STEP}, as savedmodel, onnx; largest diff" in (
      capsys.readouterr().out.splitlines()[-1])
  text = (tmp_path / "out" / "README.md").read_text()
  assert ("with averaged weights" in text) == (names != ["policy"])
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
      ["README.md", "config.gin", *(f"{name}{suffix}" for name in names
                                    for suffix in ("", ".onnx", ".npz"))])
