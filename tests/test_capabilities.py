"""The capability table: each row runs where it says, and is refused elsewhere."""

import pathlib
import re

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import Replicator, UsageError
from replicator.app import config
from tests.programs import capabilities
from tests.programs.features import FEATURES, Feature, KerasNoisy, Regression
from tests.programs.planted_bugs import Points

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "capabilities.md"
WIDTH = 4  # The inputs of a layer.


pytestmark = pytest.mark.usefixtures("restored")


@pytest.fixture(scope="module")
def central_storage():
  return Replicator("central_storage", logical_cpus=2)


# ---- The table ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_document_says_what_runs():
  assert capabilities.page() == DOCUMENT.read_text(), f"write it again: {capabilities.COMMAND}"


def test_the_document_has_all_features_and_strategies():
  rows = [[word.strip() for word in line.strip("|").split("|")]
          for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
  assert [row[0] for row in rows[2:]] == list(FEATURES)
  strategies = set(replicator.strategies.strategy.NAMES) - {"default"}
  assert {name.strip("`") for name in rows[0][1:]} == strategies
  assert all(len(row) == len(rows[0]) for row in rows)


def test_the_table_tells_what_was_found():
  names = list(FEATURES)
  reference = {name: {"losses": [1.0, 2.0]} for name in names}
  mirrored = {**reference, names[0]: {"losses": [1.0, 2.0 + 1e-8]},
              names[1]: {"losses": [1.0, 2.0 + 1e-10]}, names[2]: {"refused": "why not"}}
  text = capabilities.table({"one_device": reference, "mirrored": mirrored,
                             "parameter_server": mirrored}, reference)
  assert f"| {names[0]} | same | differs | runs | never run |\n" in text
  assert f"| {names[1]} | same | same | runs | never run |\n" in text
  assert f"| {names[2]} | same | refused[^1] | refused[^1] | never run |\n" in text
  assert text.endswith("\n\n[^1]: `why not`\n")
  with pytest.raises(AssertionError):
    capabilities.cell(Feature(Regression), "parameter_server", {"losses": [float("nan")]}, {})


# ---- What is refused ----------------------------------------------------------------------------

DRAW = "use replicator.Dropout, or draw with replicator.random"
REFUSED = {
    "batch_normalization": (keras.layers.BatchNormalization, "use replicator.GlobalBatchNorm"),
    "dropout": (lambda: keras.layers.Dropout(0.5), "use replicator.Dropout"),
    "inner": (lambda: keras.Sequential([keras.layers.SpatialDropout1D(0.5, name="inner")]),
              "use replicator.Dropout"),
    "spectral_normalization": (
        lambda: keras.layers.SpectralNormalization(keras.layers.Dense(WIDTH)),
        "use replicator.SpectralNorm"),
    "gaussian_noise": (lambda: keras.layers.GaussianNoise(0.1), DRAW),
    "lstm_cell": (lambda: keras.layers.LSTM(WIDTH, recurrent_dropout=0.1), DRAW),
    "gru": (lambda: keras.layers.GRU(WIDTH, stateful=True), "write stateful=False"),
}
FINE = {
    "no dropout": lambda: keras.layers.Dropout(0.0),
    "recurrent": lambda: keras.layers.LSTM(WIDTH),
    "normalization": lambda: keras.layers.Normalization(mean=[0.0] * WIDTH, variance=[1.0] * WIDTH),
    "frozen": lambda: keras.layers.BatchNormalization(trainable=False),
}


class Holder(tf.Module):
  """A step that holds a layer in a dict, and calls it with sequences."""

  def __init__(self, layer: keras.layers.Layer):
    super().__init__()
    self.networks = {"only": [keras.Sequential([keras.Input(batch_shape=[2, 3, WIDTH]), layer])]}

  def __call__(self) -> tf.Tensor:
    return tf.reduce_sum(self.networks["only"][0](tf.ones([2, 3, WIDTH]), training=True))


@pytest.mark.parametrize("name", REFUSED)
def test_central_storage_refuses_a_layer_that_it_cannot_train(name, central_storage):
  make_layer, remedy = REFUSED[name]
  with central_storage.scope():
    step = Holder(make_layer())
  with pytest.raises(UsageError) as refusal:
    central_storage.run(step)
  assert re.match(r"Replicator.strategy = 'central_storage': it cannot update the variables of the "
                  rf"layer '(.+/)?{name}(_\d+)?' \(Keras \w+\) on 2 replicas; {remedy}$",
                  str(refusal.value))
  with pytest.raises(ValueError, match="must specify an aggregation"):  # So that it had to be.
    central_storage.on_replicas(step, tf.constant(0, tf.int64), ())


@pytest.mark.parametrize("name", FINE)
def test_central_storage_takes_a_layer_that_only_looks_like_one(name, central_storage):
  with central_storage.scope():
    step = Holder(FINE[name]())
  assert len(central_storage.run(step)) == 2


def test_one_replica_of_central_storage_takes_all():
  one = Replicator("central_storage", logical_cpus=1)
  with one.scope():
    step = Holder(keras.layers.Dropout(0.5))
  assert len(one.run(step)) == 1


def test_a_training_is_refused_before_it_starts(tmp_path):
  config.parse([], ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2",
                    "train.steps = 1"])
  with pytest.raises(UsageError, match="cannot update the seed generator 'seeds' on 2 replicas"):
    replicator.train(KerasNoisy, Points(), workdir=str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()
