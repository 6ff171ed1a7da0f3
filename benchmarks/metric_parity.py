"""Compares the metrics of `models.metrics` with torch-fidelity and `prdc`, on the same features.

  pip install torch torch-fidelity prdc
  python -m benchmarks.metric_parity [--goldens=tests/models/metrics/goldens.json]

Each row has the reference's number, this project's, and their difference, which must not exceed
the column `allowed`. It is relative to the number for FID and the Inception score, and to the
kernel for KID. The exit status is 1 if one is exceeded. `--goldens` also writes the references'
numbers to a file for the tests.

Where torch-fidelity sums in float32, so that only rounding differs, it is also run in float64.
"""

import contextlib
import importlib.metadata
import io
import itertools
import json
import pathlib
import sys
from typing import NamedTuple

from benchmarks.metric_cases import MetricCase, metric_cases
from benchmarks.record import Table
from benchmarks.usage import require
from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.distances.frechet import frechet_distance
from models.metrics.distances.inception_score import inception_score
from models.metrics.distances.kernel import kernel_distance
from models.metrics.distances.neighbors import IMPROVED, PRDC, neighbor_scores

import numpy as np
from absl import app, flags

NEEDED = ("torch", "torch-fidelity", "prdc")
SUBSETS = 20
# What rounding makes of a number.
ALLOWED = {"FID": 1e-4, "FID in float64": 1e-6, "KID mean": 1e-6, "KID std": 1e-6,
           "KID mean in float64": 1e-12, "KID std in float64": 1e-12, "IS mean": 1e-5,
           "IS std": 1e-5, "precision, k = 3, <=": 1e-7, "recall, k = 3, <=": 1e-7,
           "features, real": 1e-5, "features, generated": 1e-5}
OF_SAMPLES = 1e-12  # Shares of samples are equal; torch-fidelity divides in float32, see above.


class Comparison(NamedTuple):
  """One number of a reference and of this project.

  Attributes:
    case: which features.
    name: which number.
    reference: torch-fidelity's or `prdc`'s.
    ours: this project's.
    scale: what the difference is relative to.
  """

  case: str
  name: str
  reference: float
  ours: float
  scale: float

  @property
  def difference(self) -> float:
    return abs(self.ours - self.reference) / self.scale

  @property
  def allowed(self) -> float:
    return ALLOWED.get(self.name, OF_SAMPLES)


def compare(goldens: dict[str, dict[str, float]]) -> list[Comparison]:
  """Compares this project's numbers with the references', by case and name."""
  comparisons = []
  for name, case in metric_cases().items():
    found = ours(case)
    kernel = kernel_size(case.real, case.generated)
    for metric, reference in goldens[name].items():
      scale = {"FID": abs(reference), "IS ": 1.0, "KID": kernel}.get(metric[:3], 1.0)
      comparisons.append(Comparison(name, metric, reference, found[metric], scale))
  return comparisons


def kernel_size(*sets: np.ndarray) -> float:
  """The mean kernel of a sample and itself, in the set of features [n, d] where it is greatest."""
  kernels = (np.mean(features.astype(np.float64) ** 2, axis=1) + 1 for features in sets)
  return float(max(np.mean(kernel ** 3) for kernel in kernels))


def ours(case: MetricCase) -> dict[str, float]:
  """Returns this project's numbers."""
  real, generated = case.real, case.generated
  fid = frechet_distance(FeatureStatistics.of(real), FeatureStatistics.of(generated))
  kid = kernel_distance(real, generated, SUBSETS, case.subset_size)
  score = inception_score(generated, case.splits)
  improved, prdc = neighbor_scores(real, generated, [IMPROVED, PRDC])
  return {
      "FID": fid, "FID in float64": fid, "KID mean": kid.mean, "KID std": kid.std,
      "KID mean in float64": kid.mean, "KID std in float64": kid.std,
      "IS mean": score.mean, "IS std": score.std,
      "precision, k = 3, <=": improved.precision, "recall, k = 3, <=": improved.recall,
      "precision, k = 5, <": prdc.precision, "recall, k = 5, <": prdc.recall,
      "density, k = 5, <": prdc.density, "coverage, k = 5, <": prdc.coverage}


def references(case: MetricCase) -> dict[str, float]:
  """Returns the same numbers from `prdc` and torch-fidelity, whose first input is `generated`."""
  import prdc
  import torch
  from torch_fidelity import metric_fid, metric_isc, metric_kid, metric_prc

  def moments_and_kernels(features: list[torch.Tensor], suffix: str) -> dict[str, float]:
    statistics = [metric_fid.fid_features_to_statistics(part) for part in features]
    fid = metric_fid.fid_statistics_to_metric(*statistics, False)
    kid = metric_kid.kid_features_to_metric(
        *features, kid_subsets=SUBSETS, kid_subset_size=case.subset_size, verbose=False)
    return {f"FID{suffix}": fid["frechet_inception_distance"],
            f"KID mean{suffix}": kid["kernel_inception_distance_mean"],
            f"KID std{suffix}": kid["kernel_inception_distance_std"]}

  pair = [torch.from_numpy(features) for features in (case.generated, case.real)]
  score = metric_isc.isc_features_to_metric(pair[0], case.splits)
  improved = metric_prc.prc_features_to_metric(*pair, verbose=False)
  with contextlib.redirect_stdout(io.StringIO()):
    strict = prdc.compute_prdc(case.real, case.generated, nearest_k=PRDC.k)
  return {
      **moments_and_kernels(pair, ""),
      **moments_and_kernels([features.double() for features in pair], " in float64"),
      "IS mean": score["inception_score_mean"], "IS std": score["inception_score_std"],
      **{f"{name}, k = 3, <=": improved[name] for name in ("precision", "recall")},
      **{f"{name}, k = 5, <": float(strict[name])
         for name in ("precision", "recall", "density", "coverage")}}


def print_tables(comparisons: list[Comparison]) -> int:
  """Prints a table for each case; returns 1 if a number differs, and 0 otherwise."""
  for case, rows in itertools.groupby(comparisons, lambda it: it.case):
    table = Table(case, {"the reference's": ".8g", "this project's": ".8g", "difference": ".1e",
                         "allowed": ".0e", "differs": ""})
    for it in rows:
      table.add(it.name, it.reference, it.ours, it.difference, it.allowed,
                "" if it.difference <= it.allowed else "yes")
  return int(not all(it.difference <= it.allowed for it in comparisons))


def main(argv: list[str]) -> None:
  del argv
  require(*NEEDED)
  goldens = {name: references(case) for name, case in metric_cases().items()}
  comparisons = compare(goldens)
  status = print_tables(comparisons)
  if flags.FLAGS.goldens:
    source = {"command": "python -m benchmarks.metric_parity --goldens=FILE",
              **{name: importlib.metadata.version(name)
                 for name in (*NEEDED, "numpy", "scikit-learn")}}
    text = json.dumps({"source": source, "numbers": goldens}, indent=1)
    pathlib.Path(flags.FLAGS.goldens).write_text(text + "\n")
  sys.exit(status)


if __name__ == "__main__":
  flags.DEFINE_string("goldens", None, "Where to write the references' numbers.")
  app.run(main)
