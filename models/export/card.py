"""The model card of exported networks, in Markdown: `card.md` filled in from a run."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from models.export.networks import ExportedNetwork
from replicator.console.formatting import format_number
from replicator.training.workdir.reader import Run

import jinja2

_DATA = re.compile(r"^(?:\w+\.data|Environments\.name|ImageFolder\.path) = (.+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class File:
  """A network exported in one format, `savedmodel` or `onnx`, to a file or a folder."""

  network: ExportedNetwork
  format: str
  path: pathlib.Path
  difference: float  # The largest difference between its outputs and the run's.

  @property
  def megabytes(self) -> float:
    """The size of the file, or of all files in the folder."""
    return sum(each.stat().st_size for each in (self.path, *self.path.rglob("*"))
               if each.is_file()) / 1e6


def text(run: Run, step: int, files: Sequence[File]) -> str:
  """Renders the model card of networks exported from a run at a step."""
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), trim_blocks=True,
      lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.ChainableUndefined,
      finalize=_recorded)
  environment.filters.update(
      number=format_number,
      cell=lambda value: str(_recorded(value)).replace("|", "\\|"))  # In a Markdown table.
  networks = list({file.network.name: file.network for file in files}.values())
  evaluations = [row for row in run.rows if row["step"] <= step
                 and any(name.startswith("eval/") for name in row)]
  return environment.get_template("card.md").render(
      facts=run.facts, folder=run.folder.name, step=step, files=files, networks=networks,
      names=[each.name for each in networks[0].inputs], data=_DATA.findall(run.config),
      classes=_classes(run, networks),
      evaluation=evaluations[-1] if evaluations else None)


def _classes(run: Run, networks: Sequence[ExportedNetwork]) -> list[tuple[str, int | None]]:
  """Returns the names and image counts of the data's classes, if a network uses classes."""
  inputs = {values.name for network in networks for values in network.inputs}
  is_gan = {network.name for network in networks} <= {"generator", "encoder"}
  return [] if is_gan and "label" not in inputs else [
      *run.facts.get("data", {}).get("classes", {}).items()]


def _recorded(value: Any) -> Any:
  is_missing = value is None or isinstance(value, jinja2.Undefined)
  return "not recorded" if is_missing else value
