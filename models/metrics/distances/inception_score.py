"""The Inception score: are images clearly of one class, and are all classes present?"""

import itertools
from typing import NamedTuple

from models.metrics.distances.checks import checked

import numpy as np
import numpy.typing as npt
import scipy.special


class InceptionScore(NamedTuple):
  """The mean over splits, and the standard deviation between them (dividing by n, not n - 1)."""

  mean: float
  std: float


def inception_score(logits: npt.ArrayLike, splits: int = 10, seed: int = 2020) -> InceptionScore:
  """Computes exp(E[KL(p(class | image) || p(class))]), from 1 to the number of classes.

  The samples are permuted and split, and each split has a separate score, whose p(class) is the
  split's mean. Scores rise with the number of samples in a split, so compare only equal counts and
  splits. Published scores use Inception's logits without the bias. Permutation and defaults are
  those of torch-fidelity.

  Args:
    logits: logits [n, classes] of generated images.
    splits: number of splits, at least 1.
    seed: seed of the permutation.

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
  # In logarithms, so that a class without images does not give 0 times infinity.
  of_images = scipy.special.log_softmax(logits.astype(np.float64), axis=1)
  of_all = scipy.special.logsumexp(of_images, axis=0) - np.log(len(logits))
  return float(np.exp(np.mean(np.sum(np.exp(of_images) * (of_images - of_all), axis=1))))
