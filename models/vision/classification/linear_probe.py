"""The linear probe: the accuracy of a linear classifier on features."""

import numpy as np


def linear_probe(features: np.ndarray, labels: np.ndarray, held_out_features: np.ndarray,
                 held_out_labels: np.ndarray) -> float:
  """Returns a logistic regression's accuracy on held-out examples; NaN if features are not finite.

  Features are floats `[n, d]`, and labels integers `[n]`. Each feature is standardized by the mean
  and the standard deviation of the training examples. scikit-learn's `LogisticRegression` with its
  default penalty fits the classifier.
  """
  from sklearn.linear_model import LogisticRegression  # Slow to import.
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler
  if not (np.isfinite(features).all() and np.isfinite(held_out_features).all()):
    return float("nan")
  classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
  classifier.fit(features, labels)
  return float(classifier.score(held_out_features, held_out_labels))
