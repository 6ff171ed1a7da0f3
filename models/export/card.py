"""The model card of exported networks, in Markdown: their arguments, numbers and training."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from models.export.networks import ExportedNetwork, Values
from replicator.console.formatting import format_number
from replicator.workdir.reader import Run

_DATA = re.compile(r"^(?:\w+\.data|Environments\.name|ImageFolder\.path) = (.+)$", re.MULTILINE)
_LOADING = {
    "savedmodel": ("import tensorflow as tf",
                   "{output} = tf.saved_model.load('{file}')({inputs})"),
    "onnx": ("import onnxruntime",
             "[{output}] = onnxruntime.InferenceSession('{file}').run(None, {{{dict}}})")}


@dataclasses.dataclass(frozen=True)
class File:
  """A network in one format.

  Attributes:
    network: the network that it holds.
    format: `savedmodel` or `onnx`.
    path: the file, or the folder.
    difference: the greatest difference of its results from those of the run.
  """

  network: ExportedNetwork
  format: str
  path: pathlib.Path
  difference: float


def text(run: Run, step: int, files: Sequence[File]) -> str:
  """The card of files that hold networks of a run after some step."""
  networks = list({file.network.name: file.network for file in files}.values())
  experiment = run.facts.get("experiment", run.folder.name)
  names = " and ".join(each.name for each in networks)
  return "\n\n".join([
      f"# The {names} of a run of {experiment}, step {step:,}",
      " ".join(each.meaning for each in networks),
      "## Inputs and outputs", _table(
          ("network", "", "name", "shape", "dtype", "values"),
          (row for network in networks for row in _rows(network))),
      "n is any number of examples.",
      "## Files", _table(
          ("file", "size", "greatest difference from the run"),
          ([f"`{each.path.name}`", _size(each.path), f"{each.difference:.2g}"]
           for each in files)),
      "The `.npz` files have examples: arguments, by name, and the result of the run,\n"
      "`expected`. A process without the code of the run loaded each file on a CPU; its results\n"
      "have these differences.",
      f"```python\n{_loading(files)}\n```",
      "## Numbers", _numbers(run, step),
      "## Training", _table(("", ""), _training(run)),
      "## Configuration", "`config.gin` has every value. These were set:",
      f"```text\n{_settings(run.facts)}\n```"]) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  lines = [head, ["---"] * len(head), *rows]
  cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
  return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _rows(network: ExportedNetwork) -> Iterable[Sequence[str]]:
  for role, each in [*(("input", each) for each in network.inputs), ("output", network.output)]:
    shape = ", ".join(map(str, ("n", *each.shape)))
    yield network.name, role, f"`{each.name}`", f"[{shape}]", each.dtype, _meaning(each)


def _meaning(values: Values) -> str:
  bounds = f", in [{values.low:g}, {values.high:g}]" if values.low is not None else ""
  return f"{values.meaning}{bounds}"


def _size(path: pathlib.Path) -> str:
  files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
  return f"{sum(each.stat().st_size for each in files) / 1e6:.2f} MB"


def _loading(files: Sequence[File]) -> str:
  """Python that loads the first network in each format."""
  first = [file for file in files if file.network is files[0].network]
  names = [each.name for each in first[0].network.inputs]
  listed = ", ".join(names)
  lines = []
  for file in first:
    importing, call = _LOADING[file.format]
    lines += [importing, call.format(
        output=file.network.output.name, file=file.path.name, inputs=listed,
        dict=", ".join(f"'{name}': {name}" for name in names))]
  return "\n".join(lines)


def _numbers(run: Run, step: int) -> str:
  """The last evaluation until a step."""
  evaluations = [row for row in run.rows if row["step"] <= step
                 and any(name.startswith("eval/") for name in row)]
  if not evaluations:
    return "The run had no evaluation until this step."
  row = evaluations[-1]
  numbers = {name.removeprefix("eval/"): value for name, value in row.items()
             if name.startswith("eval/")}
  table = _table(("metric", "value"), ((name, format_number(value) if isinstance(value, int | float)
                                        else str(value)) for name, value in numbers.items()))
  method = run.facts.get("evaluation") or "how it was measured is not recorded"
  return f"The evaluation of step {row['step']:,}: {method}.\n\n{table}"


def _training(run: Run) -> Iterable[Sequence[str]]:
  facts: dict[str, Any] = {"machine": {}, "versions": {}, **run.facts}
  accelerators = ", ".join(map(str, facts["machine"].get("accelerators", []))) or "no accelerator"
  commit = facts.get("git_commit") or "not recorded"
  changed = " with changes, which `changes.diff` of the run has" if facts.get("git_diff") else ""
  yield "command", f"`{facts.get('command', 'not recorded')}`"
  yield "data", ", ".join(f"`{each}`" for each in _DATA.findall(run.config)) or "see below"
  yield "steps", f"{facts.get('steps')} of {facts.get('global_batch_size')} examples"
  yield "seed", str(facts.get("seed"))
  yield "precision", str(facts.get("precision"))
  yield "strategy", (f"{facts.get('strategy')}; replicas: {facts.get('num_replicas')}, workers: "
                     f"{facts.get('num_workers')}")
  yield "hardware", (f"{facts['machine'].get('processor')}; cores: "
                     f"{facts['machine'].get('cores')}, {accelerators}")
  yield "commit", f"`{commit}`{changed}"
  yield "versions", ", ".join(f"{name} {each}" for name, each in facts["versions"].items())


def _settings(facts: dict[str, Any]) -> str:
  return "\n".join(f"{name} = {value}" for name, value, _ in facts.get("settings", []))
