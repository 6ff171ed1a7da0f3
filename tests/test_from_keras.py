"""A program of Keras, and what the page on Keras makes of it."""

import re

import replicator
from replicator.app import config
from tests.pages import changes, diff_of
from tests.programs import keras_gan, keras_gan_ported

import tensorflow as tf

MOST_LINES = 25


def test_the_page_shows_the_few_lines_that_change():
  shown = diff_of("keras")
  assert shown == changes("keras_gan", "keras_gan_ported")
  for sign in "+-":
    assert len([line for line in shown if line.startswith(sign)]) <= MOST_LINES


def test_the_program_of_keras_trains():
  keras_gan.compiled_gan().fit(keras_gan.digits().take(1), shuffle=False, verbose=0)


def test_the_ported_program_trains_the_same_on_two_replicas(tmp_path, capsys):
  config.parse([], ["train.global_batch_size = 64", "train.precision = 'float64'",
                    "Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"])
  digits = lambda: keras_gan_ported.digits().map(lambda x: tf.cast(x, tf.float64))
  replicator.train(keras_gan_ported.compiled_gan, digits, workdir=str(tmp_path), steps=2,
                   callbacks=[keras_gan_ported.Samples()])
  said = capsys.readouterr().out
  assert "warning" not in said
  assert float(re.search(r"first step: same as on one device, (\S+)", said)[1]) < 1e-12
  assert (tmp_path / "samples-2.npy").exists()
