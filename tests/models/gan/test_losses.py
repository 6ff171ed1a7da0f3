import gin
import numpy as np
import pytest
import tensorflow as tf

from models.gan.losses import hinge_discriminator_loss, hinge_generator_loss

SCORES = np.random.default_rng(0).normal(size=(2, 10), scale=1.5)

# float64 to its last bits: a loss rounded to float32 on the way would be 1e-7 off.
DTYPES = [("float64", 1e-15), ("float32", 1e-6), ("bfloat16", 1e-2)]
CALLS = {"eager": lambda f: f, "function": tf.function,
         "xla": lambda f: tf.function(f, jit_compile=True)}


def numpy_discriminator_loss(real, fake):
  return np.mean(np.maximum(0, 1 - real)) + np.mean(np.maximum(0, 1 + fake))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("shape", [[10], [10, 1]])
def test_losses_equal_the_closed_form(call, dtype, tolerance, shape):
  real, fake = (tf.cast(tf.reshape(scores, shape), dtype) for scores in SCORES)
  d_loss = call(hinge_discriminator_loss)(real, fake)
  g_loss = call(hinge_generator_loss)(fake)
  assert d_loss.shape == g_loss.shape == []
  assert d_loss.dtype == g_loss.dtype == (tf.float64 if dtype == "float64" else tf.float32)
  np.testing.assert_allclose(d_loss, numpy_discriminator_loss(*SCORES), rtol=tolerance)
  np.testing.assert_allclose(g_loss, -np.mean(SCORES[1]), rtol=tolerance * 10)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dtype, tolerance", DTYPES)
def test_gradients_equal_the_closed_form(call, dtype, tolerance):
  @call
  def gradients(real, fake):
    with tf.GradientTape(persistent=True) as tape:
      tape.watch([real, fake])
      losses = hinge_discriminator_loss(real, fake), hinge_generator_loss(fake)
    return tape.gradient(losses[0], [real, fake]), tape.gradient(losses[1], fake)

  (d_real, d_fake), g_fake = gradients(*(tf.cast(scores, dtype) for scores in SCORES))
  # Each example weighs 1 / n, and none where it is beyond the margin.
  for gradient, expected in [(d_real, np.where(SCORES[0] < 1, -0.1, 0)),
                             (d_fake, np.where(SCORES[1] > -1, 0.1, 0)),
                             (g_fake, np.full(10, -0.1))]:
    assert gradient.dtype == dtype
    np.testing.assert_allclose(tf.cast(gradient, tf.float64), expected, rtol=tolerance)


def test_losses_leave_nothing_in_the_graph():
  @tf.function
  def step():
    hinge_discriminator_loss(tf.zeros([2]), tf.zeros([2]))
    return hinge_generator_loss(tf.zeros([2]))

  assert "losses" not in step.get_concrete_function().graph.collections


def test_batches_of_other_sizes_are_refused():
  with pytest.raises(ValueError, match=r"\(3,\) and \(2,\) are incompatible"):
    hinge_discriminator_loss(tf.zeros([3]), tf.zeros([2]))


def test_gin_refers_to_the_losses_by_name():
  with gin.unlock_config():
    gin.parse_config("macro_loss = @hinge_generator_loss")
  assert gin.query_parameter("%macro_loss").configurable.wrapped(tf.ones([2])) == -1
  gin.clear_config()
