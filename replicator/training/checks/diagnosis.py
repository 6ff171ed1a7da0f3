"""Compares two recordings of a step: where they first differ, and the likely cause."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from replicator.console.formatting import listed
from replicator.training.checks.inspection import Evidence
from replicator.training.checks.mixing import Suspects
from replicator.training.checks.step_recorder import BATCH, GRADIENT, LOSS, VARIABLE, Key

import numpy as np

TOLERANCES = {"float64": 1e-9, "float32": 1e-3}
"""The largest relative difference that counts as rounding. In float32, the first 5 steps of a GAN
stay far below it, except for a few entries of gradients and weights; so norms are compared."""

LOOSE = {"float64": 1e-9, "float32": 1e-2, "mixed_bfloat16": 0.1, "mixed_float16": 0.1}
"""The same for the check in every run, where a false alarm is worse than missing a small error. In
float32, the first steps of the experiments differ by at most 4e-5, except up to 0.1 for LOGAN,
where the direction of a gradient near zero amplifies rounding."""

_MORE_THAN_ROUNDING = 10.0
"""The allowed ratio of a difference to that of `perturbed`, since a sum over replicas rounds in
more places than the weights from which a step starts."""

_WORDS = "OS"
"""The NumPy dtype kinds of strings, which are compared only for equality."""

Quantities = Mapping[Key, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Deviation:
  """The distance of one quantity from the reference."""

  key: Key
  relative: float  # The Euclidean norm of the difference, divided by that of the reference.
  values: tuple[float, float]  # Of the reference and of the variant; norms, unless scalars.


def compare(reference: Quantities, other: Quantities, tolerance: float,
            perturbed: Quantities | None = None) -> tuple[Deviation, Deviation | None]:
  """Returns the largest difference, and the first one above the tolerance.

  `perturbed` is the reference computed from weights perturbed by rounding. A quantity may differ
  ten times as much as it does there.

  Each difference is divided by the quantity's own norm, or by a lower bound that is large compared
  with rounding:

  - for a loss or a gradient, which may be the small remainder of a sum of large numbers: the square
    root of the tolerance times the largest norm among all losses of the step, or all gradients of
    the update;
  - for a variable, which may pass through zero: the norm of its own largest change in a step.
  """
  differences = _differences(reference, other, tolerance)
  by_rounding = {} if perturbed is None else {
      d.key: d.relative for d in _differences(reference, perturbed, tolerance)}
  first = next((d for d in differences if d.relative > max(
      tolerance, _MORE_THAN_ROUNDING * by_rounding.get(d.key, 0.0))), None)
  return max(differences, key=lambda d: d.relative), first


def _differences(reference: Quantities, other: Quantities, tolerance: float) -> list[Deviation]:
  with np.errstate(all="ignore"):
    floors = _floors(reference, tolerance)
    return [_difference(key, reference.get(key), other.get(key), floors.get(key, 0.0))
            for key in {**reference, **other}]


def without_trained(quantities: Quantities) -> dict[Key, np.ndarray]:
  """Drops the variables that optimizers update, because updates amplify half-precision rounding."""
  updates = [name.partition(", update ") for _, kind, name in quantities if kind == GRADIENT]
  trained = {rest.partition(": ")[2] for _, _, rest in updates}
  optimizers = tuple({f"{optimizer}/" for optimizer, _, _ in updates})
  return {key: value for key, value in quantities.items()
          if key[1] != VARIABLE or not (key[2] in trained or key[2].startswith(optimizers))}


def agreeing(reference: Quantities, other: Quantities, tolerance: float) -> list[str]:
  """Returns the kinds of quantities that agree, in the plural."""
  found = []
  for kind in (LOSS, GRADIENT, VARIABLE):
    one, two = ({key: value for key, value in quantities.items() if key[1] == kind}
                for quantities in (reference, other))
    if (one or two) and compare(one, two, tolerance)[1] is None:
      found.append("losses" if kind == LOSS else f"{kind}s")
  return found


def _floors(reference: Quantities, tolerance: float) -> dict[Key, float]:
  """Returns the lower bound of the norm that divides each floating quantity's difference."""
  largest: dict[Any, float] = {}
  floors = {}
  # The number for a batch is a mean of squares, in which nothing cancels, so it needs no floor.
  floating = {key: value for key, value in reference.items()
              if value.dtype.kind in "fc" and key[1] != BATCH}
  for key, value in floating.items():
    step, kind, name = key
    if kind == VARIABLE:
      before = reference.get((step - 1, kind, name), value)
      change = _norm(value - before) if before.shape == value.shape else 0.0
      floors[key] = largest[name] = max(largest.get(name, 0.0), change)
    else:
      largest[_kin(key)] = max(largest.get(_kin(key), 0.0), _norm(value))
  return floors | {key: tolerance ** 0.5 * largest[_kin(key)] for key in floating
                   if key[1] != VARIABLE}


def _kin(key: Key) -> tuple:
  """Returns a key shared by all losses of a step, or by all gradients of an update."""
  step, kind, name = key
  return (step, kind) if kind == LOSS else (step, kind, name.rpartition(": ")[0])


def _norm(value: np.ndarray) -> float:
  return float(np.linalg.norm(np.nan_to_num(value, posinf=0.0, neginf=0.0)))


def _difference(key: Key, a: np.ndarray | None, b: np.ndarray | None, floor: float) -> Deviation:
  if a is None or b is None or a.shape != b.shape:
    return Deviation(key, np.inf, (np.nan, np.nan))
  if a.dtype.kind in _WORDS:
    return Deviation(key, 0.0 if np.array_equal(a, b) else np.inf, (np.nan, np.nan))
  wide = np.complex128 if "c" in a.dtype.kind + b.dtype.kind else np.float64
  a, b = np.asarray(a, wide), np.asarray(b, wide)
  is_number = a.ndim == 0 and wide is np.float64
  values = (float(a), float(b)) if is_number else (_norm(a), _norm(b))
  if np.array_equal(a, b, equal_nan=True):
    return Deviation(key, 0.0, values)
  relative = float(np.linalg.norm(a - b) / max(np.linalg.norm(a), floor))
  return Deviation(key, np.inf if np.isnan(relative) else relative, values)


@dataclasses.dataclass(frozen=True)
class Case:
  """A variant that differs from the reference; `parts` is its number of replicas or micro-batches.

  `evidence` comes from the reference.
  """

  reference: Quantities
  evidence: Evidence
  other: Quantities
  first: Deviation
  parts: int
  microbatches: bool
  tolerance: float

  def place(self) -> str:
    """Describes the first difference."""
    step, kind, name = self.first.key
    label = self.evidence.labels.get(name.rpartition(": ")[2])
    expected, found = self.first.values
    what = (f"{kind} '{name}'{f' ({label})' if label else ''} "
            f"{f'at step {step}' if step else 'before the first step'}")
    if np.isnan(expected) and np.isnan(found):  # Strings, or different shapes.
      return f"{what}: different"
    return (f"{what}: {found:.6g} instead of {expected:.6g}"
            f"{'' if kind in (BATCH, LOSS) else ' (norms)'}, "
            f"relative difference {self.first.relative:.1e}")

  def cause(self) -> str:
    """Describes the likely cause and its remedy, starting with the most certain evidence."""
    if self.first.key[0] == 0:
      return ("initial weights differ: they are not drawn with the seed of the run; use Keras "
              "initializers, or NumPy's global generator, which train seeds")
    if self.first.key[1] == BATCH:
      return ("the input: the examples of a global batch depend on the number of replicas or "
              "processes; seed its shuffles, or pass train a tf.data.Dataset of global batches "
              "instead of each process's own part")
    return (self._sum_instead_of_mean() or self._clipping() or self._batch_norm_or_draws()
            or self._mixes() or self._own_statistic()
            or "a batch-dependent op: something mixes the examples of a batch, and each "
            f"{self._part} has only its own; compute it over all replicas with replicator.all_mean "
            "or all_gather")

  @property
  def _suspects(self) -> Suspects:
    """What the first differing quantity depends on, or else what all outputs depend on."""
    found = self.evidence.suspects
    return found.get(self.first.key[2], found.get("", Suspects({}, [], of_gradients=False)))

  @property
  def _part(self) -> str:
    return "micro-batch" if self.microbatches else "replica"

  def _sum_instead_of_mean(self) -> str:
    """Describes a sum in place of a mean: values differ by exactly the number of parts."""
    _, kind, name = self.first.key
    if kind == VARIABLE and not self._is_count():
      return ""
    # Check all gradients of the update: a single one may have any ratio.
    keys = [k for k in self.reference
            if k == self.first.key or (kind == GRADIENT and _kin(k) == _kin(self.first.key))]
    sums = self._suspects.sums
    what = "all gradients of this update are" if kind == GRADIENT else f"the {kind} '{name}' is"
    if self._in_ratio(keys, 1 / self.parts):
      if self._is_count():
        return (f"a count of one {self._part}'s examples: {what} exactly 1/{self.parts} of the "
                "reference's; use x.shape[0] * replicator.num_replicas()")
      return (f"a loss summed instead of averaged: {what} exactly 1/{self.parts} of the "
              f"reference's{f' (it adds up examples: {listed(sums)})' if sums else ''}; use the "
              "mean over the examples that the step receives")
    if self._in_ratio(keys, self.parts):
      return (f"a sum over replicas: {what} exactly {self.parts} times as large; Optimizer.apply "
              "averages over replicas, so the step must not sum over them")
    return ""

  def _is_count(self) -> bool:
    """Returns whether the first differing quantity is a multiple of the batch size."""
    value = self.reference.get(self.first.key)
    return (value is not None and value.ndim == 0 and value.dtype.kind in "fiu"
            and self.first.key[1] != GRADIENT and not self._suspects.sums
            and float(value) != 0 and float(value) % self.evidence.batch_size == 0)

  def _in_ratio(self, keys: list[Key], ratio: float) -> bool:
    scaled = {key: ratio * self.reference[key] for key in keys}
    others = {key: self.other[key] for key in keys if key in self.other}
    return compare(scaled, others, self.tolerance)[1] is None

  def _clipping(self) -> str:
    """Describes clipping of gradients before the optimizer, if they or their norm differ."""
    found = self.evidence.clips
    clips = [clip for clip in found if clip.startswith("tf.clip")] or found
    is_of_loss = self.first.key[1] == LOSS and not self._suspects.of_gradients
    if is_of_loss or self.first.key[1] == VARIABLE or not clips:
      return ""
    return (f"clipping before aggregation: {listed(clips)}; set wrap_optimizer's clip_norm, which "
            "clips the mean over replicas")

  def _batch_norm_or_draws(self) -> str:
    causes = []
    evidence = self.evidence
    norms = [name for name, path in evidence.local_batch_norms if self._moved(path)]
    if norms:
      causes.append("local batch norm: Keras BatchNormalization computes the statistics of "
                    f"each {self._part} separately ({listed(norms)}); use "
                    "replicator.GlobalBatchNorm")
    causes += [f"{draw} on batches that are joined at {place}: on each {self._part} their rows are "
               "in a different order; draw, or call the network, once for each batch"
               for draw, place in evidence.draws_for_joined_batches()]
    causes += evidence.constant_draws
    if evidence.draws:
      causes.append(f"{listed(evidence.draws)}: the numbers drawn for an example depend on how "
                    "the batch is divided; draw with replicator.random or replicator.Dropout")
    return "; or ".join(causes)

  def _moved(self, path: str) -> bool:
    """Returns whether a moving mean changed in the first step, which shows training mode."""
    values = [self.reference.get((step, VARIABLE, path)) for step in (0, 1)]
    return not np.array_equal(*values)  # type: ignore[arg-type]

  def _mixes(self) -> str:
    """Describes a nonlinear function of the batch, if one can cause this difference."""
    if self.first.key[1] == VARIABLE:
      return ""
    for cause, places in self._suspects.mixes.items():
      words = cause.format(place=listed(places), part=self._part)
      return words if not self.microbatches else (
          f"{words.partition(';')[0]}; microbatch's fn must return means over examples, "
          "or replicator.mean(values, mask)")
    if self.first.key[1] == LOSS and self._suspects.of_gradients:
      return (f"a number computed from the gradients of one {self._part}, which Optimizer.apply "
              "has not averaged yet; average them first with replicator.all_mean, or use "
              "grad_norm, which every run logs")
    return ""

  def _own_statistic(self) -> str:
    if self.first.key[1] != VARIABLE:
      return ""
    remedy = ("return a statistic from microbatch's fn, which averages it, and assign it afterwards"
              if self.microbatches else "average a statistic first with replicator.all_mean")
    return (f"a variable is assigned a value that one {self._part} computed from its own examples; "
            f"{remedy}; keep examples, as in a pool or a queue, in a replicator.ExamplePool")
