"""Two views of an image: independent, and the same however the batch is divided."""

import numpy as np

from models.vision.augmentation.random_view import Augmentation, Augmented, TwoViews
from models.vision.builtin.digits import Digits
from models.vision.images.image_source import read
from replicator import InputContext
from replicator.training.inputs import batches

ONE = Augmented(Digits, lambda: Augmentation(scale=(0.6, 0.9), brightness=0.2))
BOTH = TwoViews(lambda: ONE)


def first_batch(source, workers: int = 1) -> dict[str, np.ndarray]:
  parts = [next(iter(batches(source, InputContext(8, worker, workers, workers, seed=3))))
           for worker in range(workers)]
  return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_the_second_view_is_another_one_of_the_same_image():
  batch, one = first_batch(BOTH), first_batch(ONE)
  np.testing.assert_array_equal(batch["image"], one["image"])
  np.testing.assert_array_equal(batch["label"], one["label"])
  assert batch["other"].shape == batch["image"].shape == (8, 8, 8, 1)
  assert (batch["other"] != batch["image"]).any(axis=(1, 2, 3)).all()
  # Views of one image are more alike than those of different images.
  a, b = (batch[name].reshape(8, -1).astype(float) for name in ("image", "other"))
  distances = np.abs(a[:, None] - b[None]).mean(-1)
  assert np.diag(distances).mean() < 0.8 * distances.mean()


def test_the_views_are_the_same_on_any_number_of_workers():
  for name, values in first_batch(BOTH, workers=2).items():
    np.testing.assert_array_equal(values, first_batch(BOTH)[name])


def test_an_evaluation_sees_the_image_itself():
  np.testing.assert_array_equal(read(BOTH, np.arange(3))[0], read(Digits(), np.arange(3))[0])
  assert BOTH.digest() == ONE.digest() and BOTH.size == ONE.size
