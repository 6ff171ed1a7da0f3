"""Dropout: what is dropped belongs to the example, whatever the replicas and micro-batches."""

from replicator import Dropout, Replicator, UsageError, random

import keras
import numpy as np
import pytest
import tensorflow as tf

ROWS = 8  # In the global batch.
RATE = 0.25
X = np.random.default_rng(0).normal(1.0, 1.0, [ROWS, 3, 5])


def model() -> keras.Sequential:
  return keras.Sequential([keras.Input(X.shape[1:]), Dropout(RATE),
                           keras.layers.Dense(5, kernel_initializer="identity"), Dropout(RATE)])


@pytest.mark.parametrize("policy, rtol", [
    ("float32", 1e-6), ("float64", 1e-14), ("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-3)])
def test_kept_elements_are_scaled_and_the_others_zero(set_precision, policy, rtol):
  set_precision(policy)
  x = tf.constant(1.0 + np.abs(X))
  layer = Dropout(RATE)
  outputs = layer(x, training=True)
  assert outputs.dtype == layer.compute_dtype
  outputs = tf.cast(outputs, tf.float64).numpy()
  kept = outputs != 0
  np.testing.assert_allclose(outputs, np.where(kept, x / (1 - RATE), 0), rtol=rtol)
  random.set_seed(0)  # In every precision the same ones are kept.
  np.testing.assert_array_equal(kept, random.bernoulli("dropout", X.shape, 1 - RATE))


def test_inference_and_rate_0_are_the_identity():
  for rate, training in ((RATE, False), (RATE, None), (0, True), (0.0, True)):
    np.testing.assert_array_equal(Dropout(rate, dtype="float64")(X, training=training), X)


def test_what_is_dropped_passes_neither_infinities_nor_gradients():
  x = tf.constant(np.where(random.bernoulli("dropout", X.shape, 1 - RATE), X, np.inf))
  random.set_seed(0)
  with tf.GradientTape() as tape:
    tape.watch(x)
    outputs = Dropout(RATE, dtype="float64")(x, training=True)
  assert np.isfinite(outputs).all()
  np.testing.assert_allclose(tape.gradient(outputs, x), np.where(np.isinf(x), 0.0, 1 / (1 - RATE)))


@pytest.mark.parametrize("noise_shape", [[None, 1, None], (None, 3, 1), [None, 1, 1]])
def test_axes_of_1_share_a_mask(noise_shape):
  kept = Dropout(RATE, noise_shape)(np.ones([50, 3, 5]), training=True).numpy() != 0
  shared = tuple(i for i, size in enumerate(noise_shape) if size == 1)
  first = kept[tuple(slice(1) if i in shared else slice(None) for i in range(3))]
  np.testing.assert_array_equal(kept, np.broadcast_to(first, kept.shape))
  assert first.any() and not first.all()
  assert len(np.unique(kept.reshape(50, -1), axis=0)) > 1


def test_a_mask_of_keras_reaches_the_layers_behind():
  words = tf.constant([[1, 2, 0, 0], [2, 0, 0, 0]])
  network = keras.Sequential([keras.layers.Embedding(3, 2, mask_zero=True), Dropout(RATE),
                              keras.layers.GlobalAveragePooling1D()])
  vectors = network.layers[0](words).numpy()
  np.testing.assert_allclose(network(words), [vectors[0, :2].mean(0), vectors[1, 0]], rtol=1e-6)


def masks(*layers: Dropout) -> list[bytes]:
  """The mask of each layer in one step."""
  step = lambda: [layer(tf.ones([4, 50]), training=True) == 0 for layer in layers]
  return [mask.numpy().tobytes() for mask in Replicator("one_device").run(step)[0]]


def test_every_call_of_a_step_drops_other_elements():
  first, second = Dropout(RATE), Dropout(RATE)
  assert len(set(masks(first, second, first))) == 3


def test_masks_do_not_depend_on_how_many_layers_the_process_made_before():
  expected = masks(Dropout(RATE), Dropout(RATE))
  assert masks(Dropout(RATE), Dropout(RATE)) == expected
  assert masks(Dropout(RATE, name="x"), keras.models.clone_model(model()).layers[-1]) == expected


def test_a_layer_with_a_stream_of_its_own_is_independent_of_others():
  alone, = masks(Dropout(RATE, stream="mine"))
  assert masks(Dropout(RATE), Dropout(RATE, stream="mine"))[1] == alone
  assert masks(Dropout(RATE)) != [alone]


def test_configuration_comes_back():
  layer = Dropout.from_config(Dropout(RATE, [None, 1], stream="mine", name="x").get_config())
  assert (layer.rate, layer.noise_shape, layer.stream, layer.name) == (RATE, [None, 1], "mine", "x")


@pytest.mark.parametrize("make, message", [
    (lambda: Dropout(1.0), r"Dropout.rate = 1.0: must be a number in \[0, 1\)"),
    (lambda: Dropout(-0.1), "Dropout.rate = -0.1: "),
    (lambda: Dropout(float("nan")), "Dropout.rate = nan: "),
    (lambda: Dropout("0.5"), "Dropout.rate = '0.5': "),
    (lambda: Dropout(True), "Dropout.rate = True: "),
    (lambda: Dropout(RATE, [1, None, None]), r"noise_shape = \[1, None, None\]: each example"),
    (lambda: Dropout(RATE, []), r"noise_shape = \[\]: each example"),
    (lambda: Dropout(RATE, [None, 1])(X, training=True), "noise_shape = .*: does not fit inputs"),
    (lambda: Dropout(RATE, [None, 2, 1])(X, training=True), "write 3 sizes, each None, 1 or"),
])
def test_bad_settings_are_refused_in_one_line(make, message):
  with pytest.raises(UsageError, match=message):
    make()
