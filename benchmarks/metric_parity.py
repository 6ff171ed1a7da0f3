"""The metrics of `models.metrics` beside torch-fidelity and `prdc`, on the same features.

  pip install torch torch-fidelity prdc
  python -m benchmarks.metric_parity [--goldens=tests/models/metrics/goldens.json]

Each line has a number of the reference, the same number here, and their difference, which must
not exceed what the column `allowed` says: relative for FID and the Inception score, absolute for
all others. The exit status is 1 when one does. `--goldens` also writes the references' numbers to
a file, which the tests compare with.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import pathlib
import sys
from typing import NamedTuple

from absl import app, flags

from benchmarks.metric_cases import MetricCase, metric_cases
from models.metrics.frechet import frechet_distance
from models.metrics.inception_score import inception_score
from models.metrics.kernel import kernel_distance
from models.metrics.neighbors import IMPROVED, PRDC, neighbor_scores
from models.metrics.statistics import FeatureStatistics

NEEDED = ("torch", "torch-fidelity", "prdc")
SUBSETS = 20
# Rounding: torch-fidelity takes means and kernels in float32.
RELATIVE = {"FID": 1e-4, "IS mean": 1e-5}
ABSOLUTE = {"KID mean": 1e-6, "KID std": 1e-6, "IS std": 1e-5}


class Comparison(NamedTuple):
  """One number of a reference and of this project."""

  case: str
  name: str
  reference: float
  ours: float

  @property
  def difference(self) -> float:
    """Relative to the reference, or absolute, as `RELATIVE` says."""
    scale = max(abs(self.reference), 1e-12) if self.name in RELATIVE else 1
    return abs(self.ours - self.reference) / scale

  @property
  def allowed(self) -> float:
    """The largest difference that is rounding; shares of samples are equal."""
    return {**RELATIVE, **ABSOLUTE}.get(self.name, 1e-12)


def ours(case: MetricCase) -> dict[str, float]:
  """The numbers of this project."""
  real, generated = case.real, case.generated
  kid = kernel_distance(real, generated, SUBSETS, case.subset_size)
  score = inception_score(generated, case.splits)
  improved, prdc = neighbor_scores(real, generated, [IMPROVED, PRDC])
  return {
      "FID": frechet_distance(FeatureStatistics.of(real), FeatureStatistics.of(generated)),
      "KID mean": kid.mean, "KID std": kid.std, "IS mean": score.mean, "IS std": score.std,
      "precision, k = 3, <=": improved.precision, "recall, k = 3, <=": improved.recall,
      "precision, k = 5, <": prdc.precision, "recall, k = 5, <": prdc.recall,
      "density, k = 5, <": prdc.density, "coverage, k = 5, <": prdc.coverage}


def references(case: MetricCase) -> dict[str, float]:
  """The same numbers of torch-fidelity, whose first input is generated, and `prdc`."""
  import prdc
  import torch
  from torch_fidelity import metric_fid, metric_isc, metric_kid, metric_prc

  real, generated = torch.from_numpy(case.real), torch.from_numpy(case.generated)
  quiet = {"verbose": False}
  statistics = [metric_fid.fid_features_to_statistics(features) for features in (generated, real)]
  fid = metric_fid.fid_statistics_to_metric(*statistics, False)
  kid = metric_kid.kid_features_to_metric(
      generated, real, kid_subsets=SUBSETS, kid_subset_size=case.subset_size, **quiet)
  score = metric_isc.isc_features_to_metric(generated, case.splits)
  improved = metric_prc.prc_features_to_metric(generated, real, **quiet)
  with contextlib.redirect_stdout(io.StringIO()):
    strict = prdc.compute_prdc(case.real, case.generated, nearest_k=PRDC.k)
  return {
      "FID": fid["frechet_inception_distance"],
      "KID mean": kid["kernel_inception_distance_mean"],
      "KID std": kid["kernel_inception_distance_std"],
      "IS mean": score["inception_score_mean"], "IS std": score["inception_score_std"],
      **{f"{name}, k = 3, <=": improved[name] for name in ("precision", "recall")},
      **{f"{name}, k = 5, <": float(strict[name])
         for name in ("precision", "recall", "density", "coverage")}}


def main(argv: list[str]) -> None:
  del argv
  missing = [name for name in NEEDED if not importlib.util.find_spec(name.replace("-", "_"))]
  if missing:
    sys.exit(f"metric_parity compares with {', '.join(missing)}, which is not installed: "
             f"pip install {' '.join(NEEDED)}")
  cases = metric_cases()
  goldens = {name: references(case) for name, case in cases.items()}
  comparisons = [Comparison(name, metric, reference, found[metric])
                 for name, case in cases.items() for found in [ours(case)]
                 for metric, reference in goldens[name].items()]
  print(f"{'features':30} {'number':21} {'reference':>14} {'ours':>14} {'difference':>11} allowed")
  for it in comparisons:
    print(f"{it.case:30} {it.name:21} {it.reference:14.8g} {it.ours:14.8g} {it.difference:11.1e} "
          f"{it.allowed:.0e}{'' if it.difference <= it.allowed else '  DIFFERS'}")
  if flags.FLAGS.goldens:
    source = {"command": "python -m benchmarks.metric_parity --goldens=FILE",
              **{name: importlib.metadata.version(name)
                 for name in (*NEEDED, "numpy", "scikit-learn")}}
    text = json.dumps({"source": source, "numbers": goldens}, indent=1)
    pathlib.Path(flags.FLAGS.goldens).write_text(text + "\n")
  sys.exit(any(it.difference > it.allowed for it in comparisons))


if __name__ == "__main__":
  flags.DEFINE_string("goldens", None, "Where to write the references' numbers.")
  app.run(main)
