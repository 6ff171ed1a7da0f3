"""The linear probe: how well a linear classifier reads the classes from features."""

import numpy as np


def linear_probe(features: np.ndarray, labels: np.ndarray, held_out_features: np.ndarray,
                 held_out_labels: np.ndarray) -> float:
  """The accuracy of a logistic regression on held-out examples; NaN if a feature is not finite.

  Features are floats `[n, d]`, and labels integers `[n]`. Each feature is standardized by the mean
  and the standard deviation of the training examples. scikit-learn's `LogisticRegression` with its
  default penalty fits the classifier.
  """
  from sklearn.linear_model import LogisticRegression  # It takes a second to load.
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler
  if not (np.isfinite(features).all() and np.isfinite(held_out_features).all()):
    return float("nan")
  classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
  classifier.fit(features, labels)
  return float(classifier.score(held_out_features, held_out_labels))
