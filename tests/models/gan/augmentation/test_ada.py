"""Each group of ADA's changes by what it keeps, how often it happens, and its derivatives."""

from models.gan.augmentation.ada import ADA
from models.gan.penalties.gradients import r1
from models.gan.penalties.scores import Scores
from replicator import Replicator, random
from replicator.step.optimizers.schedules import linear
from tests.models.gan.networks.plain import slopes

import numpy as np
import pytest
import tensorflow as tf

IMAGES = np.random.default_rng(0).uniform(-1, 1, size=[300, 8, 8, 3])
pytestmark = pytest.mark.usefixtures("float64")
GROUPS = ("blits", "geometry", "color", "noise", "cutout")


def only(group: str, p: float = 1.0, images: np.ndarray = IMAGES, strength: float = 1.0):
  strengths = dict.fromkeys(GROUPS, 0.0)
  return ADA(p, **{**strengths, group: strength})(tf.constant(images)).numpy()


def changed(found: np.ndarray) -> float:
  """The share of the images that changed."""
  return float(np.mean(abs(found - IMAGES[..., :found.shape[3]]).max((1, 2, 3)) > 1e-9))


@pytest.mark.parametrize("channels", [1, 3])
def test_with_probability_0_nothing_changes(channels):
  images = IMAGES[:8, ..., :channels]
  found = ADA(0.0, noise=1.0, cutout=1.0)(tf.constant(images))
  np.testing.assert_allclose(found, images, atol=1e-11)
  ADA(0.0).observe(tf.ones([1]))  # A probability that is fixed does not adapt.


@pytest.mark.parametrize(("group", "share"), [
    # The kinds of a group happen by themselves. A half of all mirrorings and inversions and a
    # quarter of the turns change nothing; shifts of 8 pixels by up to 1 round to 0 in a quarter.
    ("blits", 1 - (1 - 0.3 / 2) * (1 - 0.3 * 3 / 4) * (1 - 0.3 * 3 / 4)),
    ("geometry", 1 - 0.7 ** 4), ("color", 1 - 0.7 ** 4 * (1 - 0.3 / 2)), ("noise", 0.3),
    ("cutout", 0.3)])
def test_each_kind_of_change_happens_with_its_probability(group, share):
  found = [changed(only(group, p=0.6, strength=0.5)) for _ in range(4)]
  np.testing.assert_allclose(np.mean(found), share, atol=0.05)


def test_p_may_follow_a_schedule():
  augment = ADA(linear(0.0, 1.0, end=4), blits=0, geometry=0, color=0, cutout=1)
  engine = Replicator()
  assert changed(engine.run(lambda: augment(tf.constant(IMAGES)))[0].numpy()) == 0
  assert [float(engine.run(augment.probability)[0]) for _ in range(3)] == [0.25, 0.5, 0.75]


def test_colors_change_by_one_affine_map_that_keeps_gray_gray():
  images = IMAGES[:40]
  found = only("color", images=images)
  for image, other in zip(images.reshape(40, -1, 3), found.reshape(40, -1, 3), strict=True):
    design = np.concatenate([image, np.ones([64, 1])], 1)
    affine, residual, *_ = np.linalg.lstsq(design, other, rcond=None)
    assert residual.max() < 1e-20
    gray, spread = affine[:3].sum(0), affine[:3] - affine[:3].mean()
    np.testing.assert_allclose(gray, gray[0], rtol=1e-9)  # The sum of the columns for each output.
    np.testing.assert_allclose(affine[3], affine[3, 0], rtol=1e-9)
    # Around the gray axis it turns and scales, so that the rows stay orthogonal there.
    np.testing.assert_allclose(spread @ spread.T, (spread @ spread.T)[0, 0] * 1.5
                               * (np.eye(3) - 1 / 3), atol=1e-9)


def close_to_normal(values: np.ndarray, stddev: float) -> None:
  """Two hundred draws or more have a mean of 0 and this standard deviation."""
  np.testing.assert_allclose([values.mean() / stddev, values.std() / stddev], [0, 1], atol=0.2)


def test_colors_change_as_much_as_in_the_paper():
  design = np.concatenate([IMAGES.reshape(300, -1, 3), np.ones([300, 64, 1])], 2)
  maps = np.linalg.pinv(design) @ only("color").reshape(300, -1, 3)  # [300, 4, 3]
  gray, offset = maps[:, :3].sum(1)[:, 0], maps[:, 3, 0]
  contrast = abs(gray)
  close_to_normal(np.log2(contrast), 0.5)
  close_to_normal(offset / gray, 0.2)  # The brightness, which comes before all others.
  assert 0.4 < (gray < 0).mean() < 0.6  # The luma is inverted, to its full amount.
  axes = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])
  across = axes @ maps[:, :3] @ axes.T
  close_to_normal(np.log2(np.sqrt(np.linalg.det(across)) / contrast), 1.0)
  close_to_normal(np.arctan2(across[:, 0, 1], across[:, 0, 0]), np.pi / np.sqrt(3))


def sources(group: str) -> tuple[np.ndarray, np.ndarray]:
  """Where the pixels around the middle come from: maps `[n, 2, 2]` and shifts `[n, 2]` of x, y.

  Each pixel of an image of 24 x 32 says where it is. Images that the border touches are left out.
  """
  y, x = np.mgrid[:24, :32] - np.array([11.5, 15.5])[:, None, None]
  places = np.stack([x, y, np.zeros_like(x)], -1)
  around = (slice(None), slice(10, 14), slice(14, 18))
  design = np.append(places[around[1:]].reshape(-1, 3)[:, :2], np.ones([16, 1]), 1)
  found = only(group, images=np.broadcast_to(places, [200, *places.shape]))[around]
  found = found.reshape(200, 16, 3)[..., :2]
  maps = np.linalg.pinv(design) @ found
  maps = maps[abs(design @ maps - found).max((1, 2)) < 0.05]
  return maps[:, :2].transpose(0, 2, 1), maps[:, 2]


def test_blits_mirror_turn_and_shift_by_an_eighth_in_whole_pixels():
  maps, shifts = sources("blits")
  np.testing.assert_allclose(maps, maps.round(), atol=0.02)
  turns = {(int(a), int(b)) for a, b in maps[np.linalg.det(maps) > 0, 0].round()}
  assert len(maps) > 180 and turns == {(1, 0), (-1, 0), (0, 1), (0, -1)}
  assert 0.4 < (np.linalg.det(maps) < 0).mean() < 0.6
  moves = np.linalg.solve(maps, shifts[..., None])[..., 0]
  np.testing.assert_allclose(moves, moves.round(), atol=0.1)
  assert [set(move.round()) for move in moves.T] == [set(range(-4, 5)), set(range(-3, 4))]


def test_geometry_scales_turns_stretches_and_shifts_as_much_as_in_the_paper():
  maps, shifts = sources("geometry")
  inside = np.linalg.det(maps) > 0
  assert inside.sum() > 150
  maps, shifts = maps[inside], shifts[inside]
  close_to_normal(np.log2(np.linalg.det(maps)) / 2, 0.2)  # A stretch keeps the area.
  before, (longest, shortest), after = (each.T for each in np.linalg.svd(maps))
  for axes in (before, after):  # A stretch is along any axis, and turned again.
    angle = np.arctan2(*axes[0, :2] if axes is before else axes[:2, 0])
    assert np.mean(abs(np.sin(2 * angle)) > 0.5) > 0.5  # Two thirds of all angles.
  stretch = np.log2(longest / shortest) / 2
  np.testing.assert_allclose(np.sqrt(np.mean(stretch ** 2)), 0.2, rtol=0.2)
  turn = np.arctan2(maps[:, 1, 0] - maps[:, 0, 1], maps[:, 0, 0] + maps[:, 1, 1])
  close_to_normal(turn, np.pi / np.sqrt(3))
  for moves, size in zip(np.linalg.solve(maps, shifts[..., None])[..., 0].T, (32, 24), strict=True):
    close_to_normal(moves, 0.125 * size)


def test_gray_images_have_the_color_changes_of_gray():
  gray = only("color", images=IMAGES[..., :1])
  random.set_seed(0)
  of_three = only("color", images=np.repeat(IMAGES[..., :1], 3, axis=3))
  np.testing.assert_allclose(np.repeat(gray, 3, axis=3), of_three, atol=1e-9)


def test_cutout_zeroes_half_of_each_axis_at_most():
  hole = only("cutout", images=np.ones([300, 8, 8, 1]))[..., 0] == 0
  assert set(hole.any(2).sum(1)) == {2, 3, 4} == set(hole.any(1).sum(1))


def test_noise_has_a_standard_deviation_of_its_own_for_each_image():
  stddev = (only("noise") - IMAGES).std((1, 2, 3))
  # |N(0, 0.1)| has the mean 0.1 sqrt(2 / pi) = 0.0798.
  np.testing.assert_allclose(stddev.mean(), 0.0798, rtol=0.1)
  assert stddev.min() < 0.01


def test_r1_through_the_pipeline_has_the_derivatives_of_finite_differences():
  images = tf.constant(IMAGES[:2])
  kernel = tf.Variable(np.random.default_rng(1).normal(size=[192, 3]) / 10)

  def penalty():
    random.set_seed(0)  # The same changes.
    network = lambda x, labels, training: tf.reduce_sum(
        tf.tanh(tf.reshape(x, [-1, 192]) @ kernel), 1)
    return r1()(Scores(network, images, images + 0, augment=ADA(1.0, noise=1.0, cutout=1.0)))

  np.testing.assert_allclose(*slopes([kernel], penalty), rtol=1e-6)
