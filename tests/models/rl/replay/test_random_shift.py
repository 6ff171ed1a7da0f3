"""Random shifts: of whole pixels, with the border repeated, as far in each direction."""

from models.rl.replay.random_shift import RandomShift
from replicator.step import context

import numpy as np

IMAGES = np.random.default_rng(0).normal(size=[500, 5, 7, 2]).astype(np.float32)


def test_images_move_by_whole_pixels_and_repeat_their_border(monkeypatch):
  monkeypatch.setattr(context.run, "global_batch_size", len(IMAGES))
  padded = np.pad(IMAGES, [(0, 0), (2, 2), (2, 2), (0, 0)], "edge")
  moves = []
  for image, source in zip(RandomShift(2)(IMAGES).numpy(), padded, strict=True):
    fits = [(y, x) for y in range(5) for x in range(5)
            if np.array_equal(image, source[y:y + 5, x:x + 7])]
    assert len(fits) == 1
    moves += fits
  count = np.unique(moves, axis=0, return_counts=True)[1]
  assert len(count) == 25 and count.min() > 5
