"""Samples belong to a seed and a number; truncation, classes, paths, and what is refused."""

import math
import types

from models.gan.evaluation import sampling
from models.gan.latents import distributions
from models.gan.latents.distributions import normal_latents, uniform_latents
from models.vision.images.classes import Classes
from models.vision.images.image_source import InMemoryImages
from replicator import GlobalBatchNorm, wrap_optimizer
from replicator.errors import UsageError
from replicator.step import context

import keras
import numpy as np
import pytest
import tensorflow as tf

DIM = 6


class Painter:
  """A generator that paints its codes and its labels: images [n, 1, DIM + 1, 1]."""

  latent_dim = DIM

  def __init__(self, latents=normal_latents, num_classes=0):
    self.latents, self.num_classes = latents, num_classes
    self.calls: list[tuple] = []

  def generate(self, z, labels):
    self.calls.append((z.numpy(), labels.numpy()))
    weights = labels if labels.dtype.is_floating else tf.one_hot(
        labels, max(self.num_classes, 1), dtype=z.dtype)
    place = tf.reduce_sum(weights * tf.range(weights.shape[1], dtype=z.dtype), 1) / 10.0
    return tf.concat([z / 5.0, place[:, None]], 1)[:, None, :, None]

  def codes(self):
    return np.concatenate([z for z, _ in self.calls])


def drawn(gan, count, **options):
  batches = list(sampling.sample(gan, count, **options))
  return [np.concatenate(column) for column in zip(*batches, strict=True)]


def test_an_image_does_not_depend_on_the_number_of_images():
  gan = Painter()
  images, _ = drawn(gan, 70, seed=3)
  assert [len(z) for z, _ in gan.calls] == [sampling.BATCH] * 3  # So that rounding is the same.
  assert images.shape == (70, 1, DIM + 1, 1) and images.dtype == np.uint8
  assert len(np.unique(images, axis=0)) == 70
  for count in (1, 32, 33):
    np.testing.assert_array_equal(drawn(Painter(), count, seed=3)[0], images[:count])


def test_seeds_differ_and_leave_the_streams_of_the_run_alone():
  context.run.seed = 7
  first, second = drawn(Painter(), 4, seed=1)[0], drawn(Painter(), 4, seed=2)[0]
  assert (first != second).any(axis=(1, 2, 3)).all()
  assert context.run.seed == 7
  context.run.seed = 0
  np.testing.assert_array_equal(drawn(Painter(), 4, seed=1)[0], first)


def test_classes_come_in_turn():
  assert drawn(Painter(num_classes=3), 40)[1].tolist() == [i % 3 for i in range(40)]
  assert drawn(Painter(num_classes=9), 5, classes=[3, 7])[1].tolist() == [3, 7, 3, 7, 3]
  assert drawn(Painter(), 3)[1].tolist() == [0, 0, 0]


def test_classes_come_in_their_shares_and_those_without_images_never():
  few = Classes(("a", "b", "c"), (90, 0, 10))
  found = drawn(Painter(num_classes=3), 40, classes=few)[1]
  assert found.tolist() == few.in_shares(40).tolist() and np.bincount(found).tolist() == [36, 0, 4]
  gan = Painter(num_classes=3)
  gan.classes = few
  assert drawn(gan, 4)[1].tolist() == [0, 2, 0, 2]


def test_a_run_has_the_classes_of_its_training():
  source = InMemoryImages(np.zeros([3, 1, 1, 1], np.uint8), np.array([0, 1, 1]), ("cat", "dog"))
  run = types.SimpleNamespace(module=Painter(num_classes=2), inputs=source)
  pets = Classes(("cat", "dog"), (1, 2))
  for facts in ({}, {"data": source.summary()}):
    assert sampling.classes_of_run(run, facts) == pets
  with pytest.raises(UsageError, match="was trained on the classes cat, eel, but its data now has "
                                       "cat, dog"):
    sampling.classes_of_run(run, {"data": {"classes": {"cat": 1, "eel": 2}}})
  without = types.SimpleNamespace(module=Painter(), inputs=source)
  assert not sampling.classes_of_run(without, {"data": source.summary()})


def test_the_class_does_not_change_the_code():
  gans = Painter(num_classes=9), Painter(num_classes=9)
  drawn(gans[0], 8, classes=[3])
  drawn(gans[1], 8, classes=[1, 2])
  np.testing.assert_array_equal(gans[0].codes(), gans[1].codes())


# ---- Truncation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("latents", "largest"), [
    (normal_latents, 2.0), (distributions.truncated_normal_latents, 2.0), (uniform_latents, 1.0)])
@pytest.mark.parametrize("truncation", [1.0, 0.5])
def test_truncated_codes_fill_their_bounds(latents, largest, truncation):
  gan = Painter(latents)
  drawn(gan, 640, truncation=truncation)
  bound = np.abs(gan.codes()).max()
  assert 0.98 * largest * truncation < bound < largest * truncation


def test_a_truncated_sample_resembles_the_one_of_the_full_code():
  full, narrow = Painter(), Painter()
  drawn(full, 64)
  drawn(narrow, 64, truncation=0.5)
  assert np.corrcoef(full.codes().ravel(), narrow.codes().ravel())[0, 1] > 0.95


def own_latents(name, shape):
  return normal_latents(name, shape)


# ---- Paths --------------------------------------------------------------------------------------


def path(gan, count, seeds, classes=()):
  sampling.interpolate(gan, count, seeds, classes)
  return gan.codes()[:count]


def first_code(gan, seed):
  drawn(gan, 1, seed=seed)
  return gan.calls[-1][0][0]


def test_a_path_leads_through_the_first_code_of_each_seed():
  codes = path(Painter(), 9, [1, 2, 3])
  for position, seed in ((0, 1), (4, 2), (8, 3)):
    np.testing.assert_array_equal(codes[position], first_code(Painter(), seed))


def test_an_arc_turns_evenly_and_is_as_far_out_as_its_ends():
  codes = path(Painter(), 5, [1, 2]).astype(np.float64)
  units = codes / np.linalg.norm(codes, axis=1, keepdims=True)
  ends = first_code(Painter(), 1), first_code(Painter(), 2)
  lengths = np.linalg.norm(ends, axis=1)
  assert np.linalg.norm(codes[2]) > np.linalg.norm(np.mean(ends, 0)) * 1.1
  assert np.linalg.norm(codes, axis=1).min() >= lengths.min() * 0.9
  # The formula of Shoemake 1985 for t = 1/4, by hand.
  angle = np.arccos(units[0] @ units[-1])
  expected = (math.sin(0.75 * angle) * ends[0] + math.sin(0.25 * angle) * ends[1]) / math.sin(angle)
  np.testing.assert_allclose(codes[1], expected, rtol=1e-5)


def test_a_path_from_a_code_to_itself_stays_there():
  first_axis = lambda name, shape: tf.one_hot(tf.zeros(shape[:1], tf.int32), shape[1])
  for latents in (normal_latents, first_axis):
    codes = path(Painter(latents), 3, [1, 1])
    np.testing.assert_allclose(codes, [first_code(Painter(latents), 1)] * 3, rtol=1e-6)


def test_the_path_between_uniform_codes_stays_in_their_cube():
  codes = path(Painter(uniform_latents), 5, [1, 2])
  np.testing.assert_allclose(codes[2], (codes[0] + codes[4]) / 2, rtol=1e-5, atol=1e-7)


def test_a_path_between_classes_mixes_them_and_keeps_the_code():
  gan = Painter(num_classes=4)
  images = sampling.interpolate(gan, 3, [5], [1, 3])
  z, weights = gan.calls[0]
  assert (z[:3] == z[0]).all() and (z[0] == first_code(Painter(), 5)).all()
  np.testing.assert_allclose(weights[:3], [[0, 1, 0, 0], [0, 0.5, 0, 0.5], [0, 0, 0, 1]])
  np.testing.assert_array_equal(images[0], drawn(Painter(num_classes=4), 1, seed=5,
                                                 classes=[1])[0][0])


def test_a_path_may_change_codes_and_classes_at_once():
  gan = Painter(num_classes=4)
  assert len(sampling.interpolate(gan, 40, [1, 2], [0, 3])) == 40
  assert [len(z) for z, _ in gan.calls] == [sampling.BATCH] * 2
  z, weights = gan.codes()[:40], np.concatenate([w for _, w in gan.calls])[:40]
  assert weights[-1].tolist() == [0, 0, 0, 1] and (z[-1] == first_code(Painter(), 2)).all()


# ---- Reconstructions ----------------------------------------------------------------------------


class Mirror(Painter):
  def reconstruct(self, images, labels):
    self.calls.append((images.numpy(), labels.numpy()))
    return 1.0 - tf.cast(images, tf.float32) / 127.5


def test_reconstructions_come_in_batches_with_their_classes():
  gan = Mirror(num_classes=3)
  images = np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1)
  decoded = sampling.reconstruct(gan, images, [2, 0])
  np.testing.assert_array_equal(decoded, 255 - images)
  assert np.concatenate([labels for _, labels in gan.calls]).tolist() == [2, 0] * 20
  sampling.reconstruct(gan := Mirror(), images[:2])  # A GAN of no classes needs none.
  assert gan.calls[0][1].tolist() == [0, 0]


# ---- What is refused ----------------------------------------------------------------------------


NOWHERE = "give several seeds, several classes, or equally many of both"


@pytest.mark.parametrize(("gan", "call", "line"), [
    *((latents, lambda latents, share=share: distributions.truncated(latents, share), line)
      for latents, share, line in [
          (normal_latents, -1.0, "truncation = -1.0: must be above 0"),
          (uniform_latents, 1.5, "trained on latents uniform in .-1, 1.*; use at most 1"),
          (own_latents, 0.5, "these come from 'own_latents'; leave it out")]),
    *((Painter(num_classes=4), lambda gan, to=to: sampling.interpolate(gan, 5, *to), NOWHERE)
      for to in [([1], []), ([1], [2]), ([1, 2, 3], [1, 2])]),
    (Painter(), lambda gan: sampling.set_standing_statistics(gan, 3),
     "standing statistics: Painter has no 'generator' with an"),
    (Painter(num_classes=9), lambda gan: drawn(gan, 1, classes=[0, -1]), "class -1: the GAN has"),
    (Painter(), lambda gan: drawn(gan, 1, classes=[0, 1]),
     "classes 0, 1: the GAN was trained without classes"),
    (Painter(), lambda gan: sampling.reconstruct(gan, np.zeros([1, 1, 1, 1], np.uint8)),
     "Painter cannot reconstruct images; if the class has an encoder, set `reconstruct = "),
    (Painter(lambda name, shape: tf.fill(shape, math.nan)), lambda gan: drawn(gan, 1),
     "the images are not finite")])
def test_what_cannot_be_sampled_is_refused(gan, call, line):
  with pytest.raises(UsageError, match=line):
    call(gan)


def test_images_and_classes_of_a_set_of_samples_are_those_of_the_seed():
  images, labels = drawn(Painter(num_classes=3), 40, seed=3)
  found = sampling.SampleSet("run", Painter(num_classes=3), 40, 3, Classes.numbered(3))
  assert (found.size, found.resolution, found.formats) == (40, (1, DIM + 1), set())
  chosen = np.array([1, 30, 31, 33, 38])  # A batch has 32 images, which 3 does not divide.
  assert found.labels(chosen).tolist() == labels[chosen].tolist() == [1, 0, 1, 0, 2]
  np.testing.assert_array_equal(np.concatenate(list(found.batches(chosen))),
                                np.repeat(images[chosen], 3, -1))
  assert images[:, 0, -1, 0].tolist() == [[128, 140, 153][i % 3] for i in range(40)]
  assert sampling.SampleSet("run", Painter(), 40, 0, Classes()).labels(chosen) is None


class Normalizing(keras.Model):
  """A generator of a linear layer and batch normalization: [n, DIM] -> [n, 1, DIM, 1]."""

  def __init__(self):
    super().__init__()
    self.linear, self.norm = keras.layers.Dense(DIM), GlobalBatchNorm(epsilon=1e-3)
    self.linear.build([None, DIM])
    self.norm.build([None, DIM])
    self.seen: list[np.ndarray] = []
    self.built = True

  def call(self, z, labels, training=False):
    if training:
      self.seen.append(labels.numpy())
    return 0.1 * self.norm(self.linear(z), training=training)[:, None, :, None]


def test_standing_statistics_are_those_of_the_averaged_weights_over_passes():
  gan = Painter(num_classes=3)
  codes = drawn(gan, 96) and gan.codes().astype(np.float64)
  gan.generator = Normalizing()
  gan.optimizers = {"generator": wrap_optimizer(
      keras.optimizers.SGD(), gan.generator.trainable_variables, ema_decay=0.9)}
  kernel = np.random.default_rng(0).normal(size=[DIM, DIM])
  gan.optimizers["generator"].averages[0].assign(kernel)
  sampling.set_standing_statistics(gan, 3)
  x = (codes @ kernel).reshape(3, sampling.BATCH, DIM)
  expected = (x[0] - x.mean((0, 1))) / np.sqrt(x.var(1).mean(0) + 1e-3)
  for _ in range(2):
    found = gan.generate(tf.constant(codes[:32], tf.float32), tf.zeros([32], tf.int32))
    np.testing.assert_allclose(found[:, 0, :, 0], 0.1 * expected, rtol=1e-4, atol=1e-5)
  assert np.bincount(np.concatenate(gan.generator.seen)).tolist() == [32, 32, 32]  # Seen once.
  assert not gan.generator.norm.moving_mean.numpy().any()


def test_standing_statistics_are_of_many_classes_and_of_truncated_codes(monkeypatch):
  gan, codes = Painter(num_classes=1000), []
  gan.generator = Normalizing()
  call = gan.generator.call
  monkeypatch.setattr(gan.generator, "call", lambda z, labels, training: (
      codes.append(z.numpy()) if training else None, call(z, labels, training=training))[1])
  gan.optimizers = {"generator": wrap_optimizer(
      keras.optimizers.SGD(), gan.generator.trainable_variables)}
  sampling.set_standing_statistics(gan, 2, truncation=0.5)
  gan.generate(tf.zeros([32, DIM]), tf.zeros([32], tf.int32))
  for seen in gan.generator.seen:
    assert len(set(seen)) == 32 and seen.min() < 32 and seen.max() >= 960
  assert len(set(np.concatenate(gan.generator.seen))) == 64
  assert 0.9 < np.abs(np.concatenate(codes)).max() <= 2 * 0.5
