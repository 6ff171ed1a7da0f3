"""The predictions of `--scaling`, as a table and as a picture."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from replicator.console.formatting import format_number
from replicator.doctor.scaling.model import REPLICAS, Network, Prediction

if TYPE_CHECKING:
  from replicator.step.context import Transfer


def counted(transfers: "Sequence[Transfer]") -> str:
  """The collectives of a step, with the bytes that one replica gives them, by what they do."""
  moves = []
  for move, count in Counter(transfer.move for transfer in transfers).items():
    sizes = [transfer.bytes for transfer in transfers if transfer.move == move]
    size = f"{format_number(sum(size or 0 for size in sizes) / 1e6)} MB"
    unknown = f" and {sizes.count(None)} whose size varies, taken as 0" if None in sizes else ""
    moves.append(f"{count} {move} ({size}{unknown})")
  return f"{len(transfers)} collective{'s' * (len(transfers) > 1)}: {', '.join(moves)}"


def table(prediction: Prediction, networks: Mapping[str, Network]) -> list[str]:
  """The efficiency in percent: a row for each number of replicas, a column for each network."""
  columns = [prediction.efficiencies(network) for network in networks.values()]
  lines = ["  replicas" + "".join(f"{name:>12}" for name in networks)]
  for replicas, row in zip(prediction.replicas, zip(*columns, strict=True), strict=True):
    lines.append(f"  {replicas:8}" + "".join(f"{100 * value:10.1f} %" for value in row))
  return lines


def draw(path: str, panels: Mapping[str, tuple[Prediction, Mapping[str, Network]]]) -> None:
  """Draws a panel for each step, with a curve for each network, into a PNG file."""
  from matplotlib.figure import Figure
  figure = Figure(figsize=(1.2 + 3.2 * len(panels), 3.2), layout="constrained")
  all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axes, (title, (prediction, networks)) in zip(all_axes, panels.items(), strict=True):
    for name, network in networks.items():
      percent = [100 * e for e in prediction.efficiencies(network)]
      axes.plot(prediction.replicas, percent, linewidth=1.5, marker="o", markersize=2.5, label=name)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("replicas", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(REPLICAS, [str(replicas) for replicas in REPLICAS])
    axes.set_ylim(0, 102)
    axes.tick_params(labelsize=8, length=0)
    axes.grid(axis="y", color="#e5e7eb")
    axes.set_frame_on(False)
  all_axes[0].set_ylabel("efficiency, %", fontsize=8)
  all_axes[-1].legend(fontsize=8, frameon=False)
  figure.savefig(path, dpi=110)
