"""The curves of a report: their axes, their smoothing, and the values under the pointer."""

import math
import re

from replicator.training.workdir import charts

import numpy as np
import pytest

NOTHING = np.zeros(0), np.zeros(0)


def curve(values: list[float] | np.ndarray, *arguments, **options) -> str:
  """One curve over hundreds of steps."""
  values = np.array(values)
  return charts.curves([(100 + 100 * np.arange(len(values)), values)], *arguments, **options)


def labels_of(svg: str) -> list[str]:
  """The labels at both axes."""
  return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def test_smoothing_keeps_constants_and_lessens_noise():
  np.testing.assert_allclose(charts.smoothed(np.full(200, 3.0), 200), 3.0)
  noise = np.random.default_rng(0).normal(size=1000)
  # The mean of 41 independent draws has a standard deviation of 1 / sqrt(41).
  assert np.std(charts.smoothed(noise, 1000)) == pytest.approx(1 / math.sqrt(41), rel=0.2)
  for length, longest, is_smoothed in ((39, 39, False), (40, 40, True), (40, 1000, False),
                                       (41, 1000, True), (3, 40, True)):
    values = np.arange(float(length))
    assert (charts.smoothed(values, longest) is not values) == is_smoothed


@pytest.mark.parametrize("values, is_logarithmic", [
    ([31.0] + [1.0] * 30, True), ([30.0] + [1.0] * 30, False), ([31.0] + [0.0] * 30, False),
    ([31.0] * 88 + [1.0] * 12, True), ([31.0] * 92 + [1.0] * 8, False)])  # A tenth is low.
def test_a_curve_that_falls_far_has_a_logarithmic_axis(values, is_logarithmic):
  assert {"0", "2"} & set(labels_of(curve(values))) == {"2" if is_logarithmic else "0"}


def test_a_spread_that_reaches_zero_has_no_logarithmic_axis():
  values = np.array([31.0] + [1.0] * 30)
  ends = [values - 1.0, values + 1.0]
  ends[1][3] = np.nan
  assert "0" in labels_of(curve(values, band=ends))


def test_outliers_of_a_long_curve_do_not_flatten_it():
  values = [0.0, 1.0] * 500
  values[500], values[100] = 1e6, -1e6  # Their moving mean over 41 points is 24,390.
  shown = [float(text) for text in labels_of(curve(values)) if re.fullmatch(r"-?\d+", text)]
  assert 1e4 <= max(shown) < 5e4 and -5e4 < min(shown) <= -1e4


def test_an_axis_of_many_decades_shows_only_these():
  labels = labels_of(curve([1e4, 1e3, 100.0, 10.0, 1.0, 1.0]))
  assert "10" in labels and not {"2", "5", "20", "50"} & set(labels)


def test_several_curves_differ_in_their_colors_and_then_in_their_dashes():
  line = np.arange(2), np.arange(2.0)
  svg = charts.curves([NOTHING, line])
  assert "var(--curve1)" in svg and "var(--curve0)" not in svg  # The one without points has it.
  assert charts.curves([NOTHING]) == ""
  eight, nine = (charts.curves([line] * count) for count in (8, 9))
  assert nine.count("stroke-dasharray") == eight.count("stroke-dasharray") + 1
  assert len({charts.key(number) for number in range(24)}) == 24


def test_a_single_point_is_visible():
  def marks(values: list[float], marker: str = "") -> int:
    return len(re.findall(r"<use [^>]*var\(--ink\)", curve(values, marker=marker)))

  assert (marks([1.0]), marks([1.0, 2.0]), marks([1.0, 2.0], "o")) == (1, 0, 2)


def test_the_finite_values_of_a_curve_are_under_the_pointer():
  svg = curve([1.0, np.nan, 4.0, np.inf, 2.5], (0, 500))
  found = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="4"><title>([^<]+)</title>', svg)
  assert [text for *_, text in found] == ["100: 1", "300: 4", "500: 2.5"]
  # The axes: 259.2 by 136.8 points, with the margins of the drawing; they begin at step 0.
  np.testing.assert_allclose([float(x) for x, *_ in found], [83.5, 167.4, 251.4], atol=0.1)
  y = [float(y) for _, y, _ in found]
  assert y[1] < y[2] < y[0] < 136.8 * 0.88
  np.testing.assert_allclose((y[0] - y[2]) / (y[0] - y[1]), 0.5, atol=0.01)
  assert svg.rstrip().endswith("</g></svg>")


def test_the_values_of_a_long_curve_are_a_choice():
  values = np.random.default_rng(0).normal(size=5000)
  svg = curve(values)
  assert svg.count("<title>") == 60  # They show the values, not their moving mean.
  assert f"<title>500000: {values[-1]:.4g}</title>" in svg


def test_an_enlarged_curve_of_many_points_keeps_its_extremes():
  values = np.random.default_rng(0).normal(size=10_000)
  values[777], values[5555] = 50.0, -50.0
  (curve,) = charts.data([(np.arange(10_000), values)])["curves"]
  kept = dict(curve["points"])
  assert len(kept) <= 2000 and (kept[777], kept[5555]) == (50.0, -50.0)
  assert charts.data([NOTHING]) is None
  assert charts.data([(np.arange(2), np.full(2, np.nan))]) is None


@pytest.mark.parametrize("values, name, exact", [
    ([1.0, 0.5, 0.5, 0.1], "temperature", True), ([0.0, 1.0, 0.5], "loss", False),
    ([0.0, 1.0, 0.5], "learning_rate/d", True), ([1.0, math.nan, 2.0], "frames", True)])
def test_a_rate_and_what_only_rises_or_falls_are_exact(values, name, exact):
  assert charts.is_exact(name, [(np.arange(len(values)), np.array(values))]) == exact


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-1e30, 1e30], [1e-9, 1e-3, 1e9]])
def test_any_finite_values_can_be_drawn(values):
  assert "<svg" in curve(values)
