"""`minimize` and `loss_and_gradients` against a tape written by hand, and closed forms."""

from replicator import Replicator, UsageError, microbatch, wrap_optimizer

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=[8, 3]), RNG.normal(size=[8])
KERNEL, SCALE = RNG.normal(size=[3, 1]), np.array(1.5)


class Regression(tf.Module):
  """A kernel [3, 1], which one optimizer owns, and a scale [], which another does."""

  def __init__(self):
    super().__init__()
    self.kernel = keras.Variable(KERNEL, dtype=keras.config.floatx(), name="kernel")
    self.scale = keras.Variable(SCALE, dtype=keras.config.floatx(), name="scale")
    self.optimizer = wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.5, name="sgd"),
                                    [self.kernel], clip_norm=2.0)

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    predictions = tf.matmul(x, self.kernel.value)[:, 0] * self.scale.value
    return tf.reduce_mean(tf.math.squared_difference(predictions, y))

  def by_hand(self, batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = self.loss(*batch)
    self.optimizer.apply(tape.gradient(loss, [self.kernel.value]), [self.kernel])
    return loss

  def minimized(self, batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    return self.optimizer.minimize(self.loss, *batch)


def train(replicator: Replicator, update: str, model_type=Regression
          ) -> tuple[list[float], np.ndarray]:
  """The mean loss of each of three steps, and the last kernel."""
  with replicator.scope():
    model = model_type()
  batch = (X.astype(keras.config.floatx()), Y.astype(keras.config.floatx()))
  losses = [np.mean(replicator.run(getattr(model, update), batch)) for _ in range(3)]
  assert model.scale.numpy() == SCALE  # Another optimizer's.
  return losses, model.kernel.numpy()


@pytest.fixture
def two_parts():
  """A gin file's `microbatch.n = 2`."""
  gin.parse_config("microbatch.n = 2")


@pytest.mark.parametrize("parts", [1, 2])
def test_updates_are_those_of_a_tape_also_in_parts_of_the_batch(float64, one_or_two, parts):
  gin.parse_config(f"microbatch.n = {parts}")
  sizes = set()

  class Seen(Regression):
    def loss(self, x, y):
      sizes.add(x.shape[0])
      return super().loss(x, y)

  losses, kernel = train(one_or_two, "minimized", Seen)
  assert sizes == {len(X) // one_or_two.num_replicas // parts}
  expected_losses, expected_kernel = train(Replicator("one_device"), "by_hand")
  assert expected_losses[0] > expected_losses[2]
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
  np.testing.assert_allclose(kernel, expected_kernel, rtol=1e-12)


@pytest.mark.parametrize("loss_fn, batch", [
    (lambda: 2.0, ()),
    (lambda x, factor, kind: tf.reduce_mean(x) * factor + kind["offset"],
     (tf.constant([0.0, 2.0, 1.0, 1.0]), tf.constant(1.5), {"offset": 0.5})),
    (lambda x: tf.reduce_mean(tf.cast(x, tf.float32)), (np.arange(1, 4, 2),)),
], ids=["no batch", "scalars", "array"])
def test_only_what_has_examples_is_divided(two_parts, loss_fn, batch):
  weight = keras.Variable(0.0)
  optimizer = wrap_optimizer(keras.optimizers.SGD(1.0), [weight])
  assert float(optimizer.minimize(lambda *parts: weight.value + loss_fn(*parts), *batch)) == 2.0
  assert weight.numpy() == -1.0


def test_inside_of_a_micro_batch_it_divides_no_further(two_parts):
  weight = keras.Variable(0.0)
  optimizer = wrap_optimizer(keras.optimizers.SGD(1.0), [weight])
  update = lambda x: optimizer.minimize(lambda x: weight.value * tf.reduce_mean(x), x)
  microbatch(update, tf.constant([1.0, 2.0, 3.0, 4.0]))
  assert weight.numpy() == -2.0 - 3.0


def test_in_one_piece_anything_may_follow_the_loss():
  weight = keras.Variable(0.0)
  optimizer = wrap_optimizer(keras.optimizers.SGD(1.0), [weight])
  x, kind = tf.zeros([4]), object()
  loss, *others = optimizer.minimize(
      lambda x, label: (weight.value + tf.reduce_mean(x), tf.range(3), "word", kind), x, "label")
  assert float(loss) == 0.0 and others[0].shape == [3] and others[1:] == ["word", kind]


def test_outputs_keep_their_nest_and_gradients_their_order():
  kernel, other, unused = (keras.Variable([2.0, 3.0], name=name) for name in "abc")
  optimizer = wrap_optimizer(keras.optimizers.SGD(1.0), [other, unused, kernel])
  def loss_fn(factor):
    return tf.reduce_sum(kernel.value ** 2 * other.value) * factor, {"factor": factor}

  (loss, found), gradients = optimizer.loss_and_gradients(loss_fn, tf.constant(0.5))
  assert float(loss) == (8 + 27) / 2 and float(found["factor"]) == 0.5
  np.testing.assert_allclose(gradients[0], [2.0, 4.5])
  assert gradients[1] is None
  np.testing.assert_allclose(gradients[2], [4.0, 9.0])  # k o, halved twice.

  other.trainable = False
  _, gradients = optimizer.loss_and_gradients(loss_fn, tf.constant(0.5))
  assert gradients[:2] == [None, None]
  optimizer.apply(gradients)
  assert kernel.numpy().tolist() == [-2.0, -6.0]
  assert other.numpy().tolist() == [2.0, 3.0]


@pytest.mark.parametrize("loss, words", [
    (lambda x: x, r"float32 \(2,\)"), (lambda x: (x, x), r"float32 \(2,\)"),
    (lambda x: tf.constant(1), r"int32 \(\)")])
def test_a_loss_that_is_not_a_floating_scalar_is_refused(loss, words):
  variable = keras.Variable([1.0, 2.0])
  optimizer = wrap_optimizer(keras.optimizers.SGD(1.0, name="sgd"), [variable])
  with pytest.raises(UsageError, match=f"^sgd: the loss is {words}; return its mean over the"):
    optimizer.minimize(lambda: loss(variable.value * 1.0))
