"""The curves of a report: their axes, their smoothing, and the values under the pointer."""

import math
import re

import numpy as np
import pytest

from replicator.workdir import charts


def test_smoothing_keeps_lines_and_lessens_noise():
  line = np.linspace(3.0, -5.0, 200)
  np.testing.assert_allclose(charts.smoothed(line), line, atol=1e-12)
  noise = np.random.default_rng(0).normal(size=1000)
  # The mean of 41 independent draws has a standard deviation of 1 / sqrt(41).
  assert np.std(charts.smoothed(noise)) == pytest.approx(1 / math.sqrt(41), rel=0.2)
  # Beside a longer curve, with its window.
  np.testing.assert_allclose(
      charts.smoothed(noise[:30], 40)[:29], charts.smoothed(noise[:40])[:29])
  for length, longest, is_smoothed in ((39, None, False), (40, None, True), (40, 1000, False),
                                       (41, 1000, True), (3, 40, True)):
    values = np.arange(float(length))
    assert (charts.smoothed(values, longest) is not values) == is_smoothed


def labels_of(values: list[float]) -> list[str]:
  """The labels at both axes of a curve over hundreds of steps."""
  svg = charts.curve(100 + 100 * np.arange(len(values)), np.array(values))
  return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


@pytest.mark.parametrize("values, is_logarithmic", [
    ([31.0] + [1.0] * 30, True), ([30.0] + [1.0] * 30, False), ([31.0] + [0.0] * 30, False),
    ([31.0] + [-1.0] * 30, False), ([31.0] * 30 + [1.0], False),
    ([31.0] * 88 + [1.0] * 12, True), ([31.0] * 92 + [1.0] * 8, False)])  # A tenth is low.
def test_a_curve_that_falls_far_has_a_logarithmic_axis(values, is_logarithmic):
  assert {"0", "2"} & set(labels_of(values)) == {"2" if is_logarithmic else "0"}


def test_a_spread_that_reaches_zero_has_no_logarithmic_axis():
  steps, values = np.arange(100.0, 3200.0, 100.0), np.array([31.0] + [1.0] * 30)
  svg = charts.curve(steps, values, band=((steps, values - 1.0), (steps, values + 1.0)))
  assert ">0</text>" in svg and ">2</text>" not in svg


def test_outliers_of_a_long_curve_do_not_flatten_it():
  values = [0.0, 1.0] * 500
  values[500], values[100] = 1e6, -1e6  # Their moving mean over 41 points is 24,390.
  shown = [float(text) for text in labels_of(values) if re.fullmatch(r"-?\d+", text)]
  assert 1e4 <= max(shown) < 5e4 and -5e4 < min(shown) <= -1e4


def test_values_that_are_not_finite_are_left_out_of_a_curve():
  svg = charts.curve(np.arange(4.0), np.array([1.0, np.nan, 3.0, np.inf]))
  assert re.findall("<title>([^<]+)</title>", svg) == ["0: 1", "2: 3"]


def test_an_axis_of_many_decades_shows_only_these():
  labels = labels_of([1e4, 1e3, 100.0, 10.0, 1.0, 1.0])
  assert "10" in labels and not {"2", "5", "20", "50"} & set(labels)


def test_a_chart_goes_from_the_first_to_the_last_step_of_the_run():
  def places(*span) -> list[float]:
    svg = charts.curve(np.array([500.0, 1000.0]), np.array([1.0, 2.0]), *span)
    return [float(x) for x in re.findall(r'cx="([\d.]+)"', svg)]

  np.testing.assert_allclose(places(), [41.5, 251.4], atol=0.1)
  np.testing.assert_allclose(places((0, 1000)), [146.4, 251.4], atol=0.1)


def test_a_curve_without_points_keeps_its_color():
  line, nothing = (np.arange(2), np.arange(2.0)), (np.zeros(0), np.zeros(0))
  svg = charts.curves({"a": nothing, "b": line})
  assert "var(--curve1)" in svg and "var(--curve0)" not in svg
  assert charts.curves({"a": nothing}) == ""


def test_curves_beyond_the_colors_are_dashed():
  line = np.arange(2), np.arange(2.0)
  eight, nine = (charts.curves(dict.fromkeys(map(str, range(n)), line)) for n in (8, 9))
  assert nine.count("stroke-dasharray") == eight.count("stroke-dasharray") + 1


def test_a_single_point_is_visible():
  def marks(values: list[float], marker: str = "") -> int:
    svg = charts.curve(np.arange(len(values)), np.array(values), marker=marker)
    return len(re.findall(r"<use [^>]*var\(--ink\)", svg))

  assert (marks([1.0]), marks([1.0, 2.0]), marks([1.0, 2.0], "o")) == (1, 0, 2)


def test_the_values_of_a_curve_are_under_the_pointer():
  svg = charts.curve(np.array([0.0, 500.0, 1000.0]), np.array([1.0, 4.0, 2.5]))
  found = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="4"><title>([^<]+)</title>', svg)
  assert [text for *_, text in found] == ["0: 1", "500: 4", "1000: 2.5"]
  # The axes: 259.2 by 136.8 points, with the margins of the drawing.
  x = [float(x) for x, *_ in found]
  np.testing.assert_allclose(x, [41.5, 146.4, 251.4], atol=0.1)
  y = [float(y) for _, y, _ in found]
  assert y[1] < y[2] < y[0] < 136.8 * 0.88
  np.testing.assert_allclose((y[0] - y[2]) / (y[0] - y[1]), 0.5, atol=0.01)
  assert svg.rstrip().endswith("</g></svg>")


def test_the_values_of_a_long_curve_are_a_choice():
  values = np.random.default_rng(0).normal(size=5000)
  svg = charts.curve(np.arange(5000.0), values)
  assert svg.count("<title>") == 60  # They show the values, not their moving mean.
  assert f"<title>4999: {values[-1]:.4g}</title>" in svg


@pytest.mark.parametrize("values", [[9.0, 10.0, 9.0], [9.0, 9.0], [0.0, 12345.0]])
def test_an_axis_of_counts_has_whole_numbers(values):
  svg = charts.curve(np.arange(len(values)), np.array(values))
  labels = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
  assert labels and not any("." in text for text in labels)


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-1e30, 1e30], [1e-9, 1e-3, 1e9]])
def test_any_finite_values_can_be_drawn(values):
  assert "<svg" in charts.curve(np.arange(len(values)), np.array(values))
