"""DANN and ADDA: their updates are those of the papers' formulas."""

from experiments.domain_adaptation import DomainAdaptation, before_call, evaluate
from models.vision.images.image_source import InMemoryImages
from tests.experiments.line import one_step

import keras
import numpy as np
import tensorflow as tf

SIZE, START, NUMBER = 4, 1, 3
DRAW = np.random.default_rng(0)
IMAGES = {name: DRAW.integers(0, 256, [SIZE, 8, 8, 1], np.uint8) for name in ("source", "target")}
LABELS = DRAW.integers(0, 10, SIZE).astype(np.int32)
SOURCE, TARGET = (IMAGES[name] / 127.5 - 1 for name in ("source", "target"))


def convolved(x, kernel, stride):
  """A convolution that pads as TensorFlow does: by one on all sides, or at the end alone."""
  before = 1 if stride == 1 else 0
  x = np.pad(x, [(0, 0), (before, 1), (before, 1), (0, 0)])
  side = 8 // stride
  return sum(x[:, i:i + stride * side:stride, j:j + stride * side:stride] @ kernel[i, j]
             for i in range(3) for j in range(3))


def relu(x):
  return np.where(x.real > 0, x, 0)


def encoded(weights, x):
  """The features."""
  for stride in (1, 2):
    kernel, bias = weights[2 * stride - 2:2 * stride]
    x = relu(convolved(x, kernel, stride) + bias)
  return relu(x.reshape(len(x), -1) @ weights[4] + weights[5])


def of_head(weights, x):
  for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
    x = relu(x @ w + b)
  return x @ weights[-2] + weights[-1]


def softplus(x):
  return np.log(1 + np.exp(x))


def class_loss(logits):
  return (np.log(np.exp(logits).sum(1)) - logits[np.arange(SIZE), LABELS]).mean()


def domain_loss(source, target):
  return (softplus(-source) + softplus(target)).mean() / 2


def values(network):
  """The weights, also if the network is frozen."""
  return [v.numpy() for v in network.variables]


def check(network, before, loss):
  """One entry of every variable has moved by the derivative of the loss, by an imaginary step."""
  for number, (variable, value) in enumerate(zip(network.trainable_variables, before, strict=True)):
    change = value - variable.numpy()
    index = np.unravel_index(np.abs(change).argmax(), change.shape)
    moved = [w.astype(complex) for w in before]
    moved[number][index] += 1e-30j
    np.testing.assert_allclose(change[index], loss(moved).imag / 1e-30, rtol=1e-9,
                               err_msg=variable.path)


def test_a_step_makes_the_updates_of_the_formulas(float64):
  keras.utils.set_random_seed(0)
  step = DomainAdaptation(lambda: keras.optimizers.SGD(1.0), 0.0, START, reversal_steps=10)
  before_call(step, START)
  dann, adda = step.dann, step.adda
  networks = dann.encoder, dann.classifier, dann.domain, adda.encoder, adda.discriminator
  encoder, classifier, domain, target_encoder, discriminator = map(values, networks)
  frozen = step.source_only.encoder, step.source_only.classifier
  only_source, only_classifier = map(values, frozen)
  batch = {name: {"image": tf.constant(image), "label": tf.constant(LABELS)}
           for name, image in IMAGES.items()}
  scalars = one_step(step, batch, number=NUMBER)

  def losses(encoder, classifier, domain):
    source, target = encoded(encoder, SOURCE), encoded(encoder, TARGET)
    return class_loss(of_head(classifier, source)), domain_loss(
        of_head(domain, source), of_head(domain, target))

  np.testing.assert_allclose([scalars["loss/dann"], scalars["loss/dann_domain"]],
                             losses(encoder, classifier, domain), rtol=1e-9)
  factor = 2 / (1 + np.exp(-10 * NUMBER / 10)) - 1
  check(dann.encoder, encoder, lambda w: np.dot(losses(w, classifier, domain), [1, -factor]))
  check(dann.classifier, classifier, lambda w: losses(encoder, w, domain)[0])
  check(dann.domain, domain, lambda w: losses(encoder, classifier, w)[1])

  for copy, weights in zip(target_encoder, only_source, strict=True):
    np.testing.assert_array_equal(copy, weights)
  of_source, of_target = encoded(only_source, SOURCE), encoded(target_encoder, TARGET)
  discriminated = lambda w: domain_loss(of_head(w, of_source), of_head(w, of_target))
  fooled = lambda w: softplus(-of_head(values(adda.discriminator), encoded(w, TARGET))).mean()
  np.testing.assert_allclose([scalars["loss/adda_discriminator"], scalars["loss/adda_encoder"]],
                             [discriminated(discriminator), fooled(target_encoder)], rtol=1e-9)
  check(adda.discriminator, discriminator, discriminated)
  check(adda.encoder, target_encoder, fooled)
  for network, weights in zip(frozen, (only_source, only_classifier), strict=True):
    for found, expected in zip(values(network), weights, strict=True):
      np.testing.assert_array_equal(found, expected)


def test_each_network_is_evaluated_with_its_classifier():
  keras.utils.set_random_seed(0)
  step = DomainAdaptation(lambda: keras.optimizers.SGD(1.0), 0.0)
  images = DRAW.integers(0, 256, [80, 8, 8, 1], np.uint8)
  pairs = {"source_only": (step.source_only.encoder, step.source_only.classifier),
           "dann": (step.dann.encoder, step.dann.classifier),
           "on_target": (step.on_target.encoder, step.on_target.classifier),
           "adda": (step.adda.encoder, step.source_only.classifier)}
  found = {name: of_head(values(classifier), encoded(values(encode), images / 127.5 - 1)).argmax(1)
           for name, (encode, classifier) in pairs.items()}
  for name, labels in found.items():  # Which are right for this network alone.
    held_out = InMemoryImages(images, labels, tuple("0123456789"))
    source = InMemoryImages(images[::-1], np.zeros(80), tuple("0123456789"))
    assert evaluate(step, source, held_out).scalars == {
        f"{other}_accuracy": np.mean(each == labels) for other, each in found.items()}
    assert np.mean(found[name] == labels) == 1
