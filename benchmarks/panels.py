"""How the panels of the benchmarks' curves look."""

from matplotlib.axes import Axes


def dress(axes: Axes, title: str, xlabel: str) -> None:
  """Gives a panel its title and labels, horizontal lines, and no frame."""
  axes.set_title(title, fontsize=9)
  axes.set_xlabel(xlabel, fontsize=8)
  axes.tick_params(labelsize=8, length=0)
  axes.grid(axis="y", color="#e5e7eb")
  axes.set_frame_on(False)
  axes.set_axisbelow(True)
