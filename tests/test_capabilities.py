"""The capability table: each row runs where it says, and is refused elsewhere."""

import pathlib
import re

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import Replicator, UsageError
from tests.programs import capabilities
from tests.programs.features import FEATURES, Feature, Regression

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "capabilities.md"
WIDTH = 4  # The inputs of a layer.


pytestmark = pytest.mark.usefixtures("restored")


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

REFUSED = {
    "batch_normalization": keras.layers.BatchNormalization,
    "dropout": lambda: keras.layers.Dropout(0.5),
    "spectral_normalization": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(WIDTH)),
    "gru": lambda: keras.layers.GRU(WIDTH, stateful=True),
}


class Holder(tf.Module):
  """A step that holds a layer in a dict, and calls it with sequences."""

  def __init__(self, layer: keras.layers.Layer):
    super().__init__()
    self.networks = {"only": [keras.Sequential([keras.Input(batch_shape=[2, 3, WIDTH]), layer])]}

  def __call__(self) -> tf.Tensor:
    return tf.reduce_sum(self.networks["only"][0](tf.ones([2, 3, WIDTH]), training=True))


def test_central_storage_refuses_a_layer_that_it_cannot_train():
  central_storage = Replicator("central_storage", logical_cpus=2)
  for name, make_layer in REFUSED.items():
    with central_storage.scope():
      step = Holder(make_layer())
    with pytest.raises(UsageError) as refusal:
      central_storage.run(step)
    assert re.fullmatch(
        r"tests/test_capabilities.py:\d+: Replicator.strategy = 'central_storage': it cannot "
        r"update this variable on several replicas; use replicator.GlobalBatchNorm, .* \(in the "
        rf"layer [^ ]+/{name}(_\d+)?\)", str(refusal.value))
