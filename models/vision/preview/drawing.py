"""The pictures and charts of the page of a preview, inside it."""

import base64
import io

import numpy as np
from PIL import Image, ImageDraw

from replicator.workdir import charts
from replicator.workdir.pages import Panel, Picture

WHOLE = 320
"""The longer side of an image that is drawn with a frame, in pixels."""

_PIXELS_SHOW = 64  # A picture with at most so many pixels a side shows them.
_FRAME = (200, 30, 30)
_BINS = 40        # The bars of a histogram.
_WIDE_RANGE = 8   # From the lowest to the highest value of a logarithmic histogram, at least.


def embedded(image: Image.Image, caption: str) -> Picture:
  """A picture of the page, from an image in RGB."""
  is_coarse = max(image.size) <= _PIXELS_SHOW
  file = io.BytesIO()
  image.save(file, "PNG" if is_coarse else "WEBP", quality=80)
  data = base64.b64encode(file.getvalue()).decode()
  return Picture(caption, f"data:image/{'png' if is_coarse else 'webp'};base64,{data}", is_coarse)


def small(image: Image.Image, side: int) -> Image.Image:
  """An image whose longer side has at most `side` pixels."""
  copy = image.copy()
  copy.thumbnail((side, side))
  return copy


def framed(image: Image.Image) -> Image.Image:
  """An image with a frame around its center square, and pale outside of that."""
  whole = small(image, WHOLE)
  if (factor := WHOLE // max(whole.size)) > 1:  # So that the frame is thin.
    whole = whole.resize((factor * whole.width, factor * whole.height), Image.Resampling.NEAREST)
  side = min(whole.size)
  left, top = (whole.width - side) // 2, (whole.height - side) // 2
  box = left, top, left + side, top + side
  pale = Image.blend(whole, Image.new("RGB", whole.size, "white"), 0.7)
  pale.paste(whole.crop(box), box)
  ImageDraw.Draw(pale).rectangle((left, top, left + side - 1, top + side - 1), outline=_FRAME,
                                 width=2)
  return pale


def histogram(caption: str, values: np.ndarray, mark: float) -> Panel:
  """How many of the positive `values` [n] are how large, with a line at `mark`."""
  from matplotlib import rc_context, ticker  # Slow to import.
  from matplotlib.figure import Figure
  low, high = float(values.min()), float(values.max())
  is_wide = high > _WIDE_RANGE * low
  edges = np.geomspace(low, high, _BINS + 1) if is_wide else np.linspace(low, high, _BINS + 1)
  with rc_context({"font.size": 8}):
    figure = Figure(figsize=(3.6, 1.9), dpi=72)
    axes = figure.add_axes((0.16, 0.14, 0.81, 0.8))
    axes.hist(values, edges.tolist(), color=charts.color("ink"), alpha=0.8)
    axes.axvline(mark, color=charts.color("evaluation"), linewidth=1.5)
    if is_wide:
      axes.set_xscale("log")
      axes.minorticks_off()
    axes.xaxis.set_major_locator(
        ticker.LogLocator(subs=(1, 2, 5)) if is_wide else ticker.MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(length=0, pad=5, colors=charts.color("faint"))
    axes.grid(axis="y", color=charts.color("line"))
    axes.set_axisbelow(True)
    axes.set_frame_on(False)
    return Panel(caption, charts.as_svg(figure), note=f"line: {mark:g}")
