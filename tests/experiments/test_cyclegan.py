"""CycleGAN: what its losses and measures are."""

import replicator
from experiments import cyclegan
from models.vision.images.image_source import InMemoryImages
from replicator.app import config
from tests.experiments.line import AVERAGING, Line, assert_scalars, one_step, with_averages
from tests.experiments.tiny_gans import ROOT

import keras
import numpy as np
import pytest
import tensorflow as tf

IMAGES = np.random.default_rng(0).integers(0, 256, [2, 5, 2, 2, 1]).astype(np.uint8)


def made(**options) -> cyclegan.CycleGAN:
  """A step whose networks are linear layers, each with a tanh."""
  keras.utils.set_random_seed(0)
  return cyclegan.CycleGAN(
      (2, 2, 1), optimizer=lambda: keras.optimizers.SGD(0.5),
      generator=lambda **_: Line(4, (2, 2, 1)), discriminator=lambda **_: Line(4, (3, 2)),
      **options)


def through(line: Line, x: np.ndarray) -> np.ndarray:
  """Images that went through a linear layer and a tanh, in NumPy."""
  return np.tanh(x.reshape(len(x), 4) @ line.dense.kernel.numpy() + line.dense.bias.numpy()
                 ).reshape(len(x), *line.outputs_shape)


def test_the_losses_of_a_step_are_those_of_the_paper(float64):
  step = made(cycle_weight=7.0, identity_weight=3.0)
  x, y = IMAGES / 127.5 - 1  # The paper's names: G: X -> Y, F: Y -> X, D_X, D_Y.
  g, f, d_x, d_y = (lambda z, line=line: through(line, z)
                    for line in (step.to_b, step.to_a, step.is_a, step.is_b))
  l1 = lambda p, q: np.abs(p - q).mean()
  adversarial = ((d_y(g(x)) - 1) ** 2).mean() + ((d_x(f(y)) - 1) ** 2).mean()
  cycle = l1(f(g(x)), x) + l1(g(f(y)), y)
  identity = l1(g(y), y) + l1(f(x), x)
  discriminator = (((d_y(y) - 1) ** 2).mean() + (d_y(g(x)) ** 2).mean()
                   + ((d_x(x) - 1) ** 2).mean() + (d_x(f(y)) ** 2).mean()) / 2
  scalars = one_step(
      step, {name: {"image": images} for name, images in zip("ab", IMAGES, strict=True)})
  assert_scalars(scalars, {
      "loss/adversarial": adversarial, "loss/cycle": cycle, "loss/identity": identity,
      "loss/generators": adversarial + 7 * cycle + 3 * identity,
      "loss/discriminators": discriminator})
  # The pools hold what the generators made before their update.
  np.testing.assert_allclose(step.pool_b.examples[:5], through(made().to_b, x), rtol=1e-9)
  np.testing.assert_allclose(step.pool_a.examples[:5], through(made().to_a, y), rtol=1e-9)


def configured(*bindings: str) -> None:
  config.parse([str(ROOT / "configs" / "cyclegan_shapes16.gin")], [
      "Shapes.resolution = 8", "Shapes.size = 48", *bindings])


def test_no_pair_is_trained_on_and_pairs_are_measured(monkeypatch):
  given = []
  monkeypatch.setattr(replicator, "train", lambda make, data, evaluate, workdir: given.append(
      evaluate))
  configured()
  cyclegan.train_cyclegan("run")
  configured("train_cyclegan.paired = False", "outlined/Shapes.size = 20")
  cyclegan.train_cyclegan("run")
  paired, unpaired = given
  of_a, of_b = (set(source._source._indices[source._indices]) for source in paired.trained)
  measured_a, measured_b = (source._indices for source in paired.measured)
  np.testing.assert_array_equal(measured_a, measured_b)
  assert (len(of_a), len(of_b), len(of_a | of_b | set(measured_a))) == (21, 21, 47)
  assert [source.size for source in (*unpaired.trained, *unpaired.measured)] == [36, 12, 12, 8]


def test_pairs_of_different_classes_are_held_out_together(monkeypatch):
  given = []
  monkeypatch.setattr(replicator, "train", lambda make, data, evaluate, workdir: given.append(
      evaluate))
  images, labels = np.zeros([40, 8, 8, 1]), np.arange(40) % 2
  a, b = (InMemoryImages(images, each, ("even", "odd")) for each in (labels, labels[::-1] // 2))
  cyclegan.train_cyclegan("run", lambda: a, lambda: b, 0.25, paired=True)
  measured_a, measured_b = (source._indices for source in given[0].measured)
  np.testing.assert_array_equal(measured_a, measured_b)


def test_translations_are_compared_with_the_truth_and_read_by_classifiers(monkeypatch, tmp_path):
  images = np.random.default_rng(1).integers(0, 256, [2, 6, 8, 8, 1]).astype(np.uint8)
  sources = [InMemoryImages(part, np.arange(6) % 2, ("even", "odd")) for part in images]
  made = {"ab": images[1] // 2, "aba": images[0], "ba": images[0] // 4, "bab": images[1]}

  class Step:
    def translate(self, a, b):
      assert np.array_equal([a, b], images)
      return {way: tf.constant(value) for way, value in made.items()}

  read = []
  logits = np.array([[2, 1], [2, 1], [2, 1], [1, 2], [1, 2], [1, 2]])  # 4 of 6 are right.

  def classifier(source, folder):
    return lambda seen: (read.append((source, folder, seen)), logits)
  monkeypatch.setattr(cyclegan.small_classifier, "load_or_train", classifier)
  evaluate = cyclegan.Evaluator(sources, sources, str(tmp_path), paired=True)
  evaluation = evaluate(Step())
  psnr = lambda x, y: np.mean(10 * np.log10(255 ** 2 / np.mean(
      (x.astype(float) - y) ** 2, (1, 2, 3))))
  assert evaluation.scalars == pytest.approx({
      "psnr_ab": psnr(made["ab"], images[1]), "psnr_ba": psnr(made["ba"], images[0]),
      "untranslated_psnr": psnr(*images),
      **{f"{of}accuracy_{way}": 4 / 6 for of in ("", "untranslated_") for way in ("ab", "ba")}},
      rel=1e-5)
  for (source, folder, seen), (wanted, name, shown) in zip(read, [
      (1, "b", made["ab"]), (1, "b", images[0]), (0, "a", made["ba"]), (0, "a", images[1])],
      strict=True):
    assert source is sources[wanted] and folder == str(tmp_path / name)
    np.testing.assert_array_equal(seen, shown)
  others = [InMemoryImages(part, np.zeros(6), ("one class",)) for part in images]
  assert cyclegan.Evaluator(others, others, str(tmp_path), paired=False)(Step()).scalars == {}


def test_translations_are_those_of_the_averages(float64):
  config.parse([], [AVERAGING])
  step = made()
  of_a, a_bias, of_b, b_bias = with_averages(step.optimizers["generators"])
  a, b = IMAGES
  found = step.translate(a, b)

  def through_averages(images, kernel, bias):
    made = np.tanh((images.reshape(5, 4) / 127.5 - 1) @ kernel + bias)
    return np.round((made.reshape(images.shape) + 1) * 127.5)

  for way, images, weights in (
      ("ab", a, (of_b, b_bias)), ("ba", b, (of_a, a_bias)),
      ("aba", found["ab"].numpy(), (of_a, a_bias)), ("bab", found["ba"].numpy(), (of_b, b_bias))):
    np.testing.assert_array_equal(found[way], through_averages(images, *weights), way)
