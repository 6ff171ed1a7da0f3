"""The Inception score: are images sure of their class, and are all classes there?"""

import itertools
from typing import NamedTuple

from models.metrics.distances.checks import checked

import numpy as np
import numpy.typing as npt
import scipy.special


class InceptionScore(NamedTuple):
  """The mean over splits, and the standard deviation between them (divided by their count)."""

  mean: float
  std: float


def inception_score(logits: npt.ArrayLike, splits: int = 10, seed: int = 2020) -> InceptionScore:
  """exp(E[KL(p(class | image) || p(class))]): from 1, no information, to the number of classes.

  The samples are permuted and split, and each split has a score of its own, whose p(class) is its
  mean. The more samples in a split, the higher its score: compare only equal counts and splits.
  Published scores are of Inception's logits without their bias. Permutation and defaults are those
  of torch-fidelity.

  Args:
    logits: numbers [n, classes], of generated images.
    splits: how many parts, at least 1.
    seed: of the permutation.

  Reference: Salimans et al. 2016 (arXiv:1606.03498), section 4.

  Raises:
    UsageError: there are fewer samples than splits, or logits that are not finite.
  """
  logits = checked(logits, "generated", splits, f"an Inception score of {splits} splits")
  order = np.random.RandomState(seed).permutation(len(logits))
  ends = [i * len(logits) // splits for i in range(splits + 1)]
  scores = [_score(logits[order[begin:end]]) for begin, end in itertools.pairwise(ends)]
  return InceptionScore(float(np.mean(scores)), float(np.std(scores)))


def _score(logits: np.ndarray) -> float:
  # All in logarithms, so that a class that no image shows is not 0 times infinity.
  of_images = scipy.special.log_softmax(logits.astype(np.float64), axis=1)
  of_all = scipy.special.logsumexp(of_images, axis=0) - np.log(len(logits))
  return float(np.exp(np.mean(np.sum(np.exp(of_images) * (of_images - of_all), axis=1))))
