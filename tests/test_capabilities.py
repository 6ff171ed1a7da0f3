"""The capability table: each row runs where it says, and is refused elsewhere."""

import pathlib
import re

import replicator
from replicator import Replicator
from tests.programs import capabilities
from tests.programs.features import FEATURES
from tests.programs.refusals import refusal

import keras
import pytest
import tensorflow as tf

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "reference" / "capabilities.md"
WIDTH = 4  # The inputs of a layer.


# ---- The table ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.first
def test_the_document_says_what_runs():
  assert capabilities.page() == DOCUMENT.read_text(), f"write it again: {capabilities.COMMAND}"


def test_the_document_has_all_features_and_strategies():
  rows = [[word.strip() for word in line.strip("|").split("|")]
          for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
  assert [row[0] for row in rows[2:]] == list(FEATURES)
  strategies = set(replicator.strategies.strategy.NAMES) - {"default"}
  assert {name.strip("`") for name in rows[0][1:]} == strategies
  assert all(len(row) == len(rows[0]) for row in rows)


# ---- What is refused ----------------------------------------------------------------------------

REFUSED = {
    "batch_normalization": keras.layers.BatchNormalization,
    "dropout": lambda: keras.layers.Dropout(0.5),
    "spectral_normalization": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(WIDTH)),
    "gru": lambda: keras.layers.GRU(WIDTH, stateful=True),
}


def test_central_storage_refuses_a_layer_that_it_cannot_train():
  central_storage = Replicator("central_storage", logical_cpus=2)
  for name, make_layer in REFUSED.items():
    with central_storage.scope():
      network = keras.Sequential([keras.Input(batch_shape=[2, 3, WIDTH]), make_layer()])
    step = lambda network=network: network(tf.ones([2, 3, WIDTH]), training=True)
    assert re.fullmatch(
        r"tests/test_capabilities.py:\d+: Replicator.strategy = 'central_storage': it cannot "
        r"update this variable on several replicas; use replicator.GlobalBatchNorm, .* \(in the "
        rf"layer [^ ]+/{name}(_\d+)?\)", refusal(central_storage.run, step))
