"""The adaptive probability against its closed form, on replicas and in micro-batches."""

import replicator
from models.gan.augmentation.ada import ADA, AdaptiveProbability
from replicator import Replicator, replicated
from replicator.step.variables import variables_of

import numpy as np
import pytest
import tensorflow as tf

# Signs 1, 0.5, 0, -1, ...: batches of 8 scores, of which more and more are negative.
SCORES = np.random.default_rng(0).normal([[2.0], [1.0], [3.0], [4.0], [0.0], [-1.0], [-2.0], [9.0]],
                                         1.0, [8, 8])


class Step(tf.Module):
  """Uses p, then observes a batch; returns p."""

  def __init__(self, n: int):
    super().__init__()
    self.p = AdaptiveProbability(target=0.6, images=40, every=2)
    self.n = n

  def __call__(self, scores):
    def use_and_observe(scores):
      p = self.p()
      self.p.observe(scores)
      return p
    return replicator.microbatch(use_and_observe, scores, self.n)


@pytest.mark.parametrize(("strategy", "replicas", "n"), [
    ("default", 1, 1), ("default", 1, 4), ("mirrored", 2, 1), ("mirrored", 2, 2)])
def test_p_follows_the_signs_of_real_scores(strategy, replicas, n):
  engine = Replicator(strategy, logical_cpus=replicas if replicas > 1 else None)
  with engine.scope():
    step = Step(n)
  used = [engine.run(step, scores) for scores in SCORES.astype(np.float32)]
  p, expected = 0.0, []
  for i, pair in enumerate(SCORES.reshape(4, 16)):
    expected += [p, p]
    r = np.sign(pair).mean()
    assert (r > 0.6) == (i in (0, 1))
    p = np.clip(p + np.sign(r - 0.6) * 16 / 40, 0, 1)
  np.testing.assert_allclose(used, np.repeat(expected, replicas).reshape(8, -1), atol=1e-6)
  (state,) = variables_of(step).values()  # What a checkpoint saves.
  np.testing.assert_allclose(replicated.read(state), [p, 0, 0], atol=1e-6)


def test_ada_in_float64_is_the_same_on_any_number_of_replicas(float64):
  images = np.random.default_rng(1).uniform(-1, 1, [8, 8, 8, 3])
  seen, used = [], []
  for engine in (Replicator(), Replicator("mirrored", logical_cpus=2)):
    with engine.scope():
      augment = ADA(AdaptiveProbability(images=16, every=1), blits=0.0, geometry=0.0, cutout=1.0)

    def step(batch, augment=augment):
      changed, p = augment(batch["image"]), augment.probability()
      augment.observe(batch["score"])
      return changed, p

    results = [engine.run(step, {"image": images, "score": np.ones([8])}) for _ in range(3)]
    seen.append([np.concatenate([changed for changed, _ in parts]) for parts in results])
    used.append([p for parts in results for p in {float(p) for _, p in parts}])
  assert used == [[0.0, 0.5, 1.0]] * 2
  np.testing.assert_allclose(seen[0], seen[1], rtol=0, atol=1e-12)
  np.testing.assert_allclose(seen[0][0], images, atol=1e-11)  # p is 0.
  assert np.abs(seen[0][2] - images).max() > 0.1


def test_p_stays_a_probability_and_ignores_nan():
  p = AdaptiveProbability(images=3, every=1)
  for _ in range(2):
    p.observe(tf.ones([2]))
  assert float(p()) == 1.0
  p.observe(tf.constant([np.nan, 1.0]))
  assert 0 <= float(p()) <= 1
