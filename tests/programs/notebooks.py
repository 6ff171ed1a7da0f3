"""Writes the tutorials as notebooks with their outputs, which the repository can show.

    python -m tests.programs.notebooks

The site executes `docs/tutorials/*.py` by itself. It takes some minutes.
"""

import os
import pathlib

from tests.pages import ROOT

import jupytext
import nbformat
from nbclient import NotebookClient

COMMAND = "python -m tests.programs.notebooks"
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.py"))


def sources(notebook: nbformat.NotebookNode) -> list[str]:
  """The text of each cell."""
  return [cell.source for cell in notebook.cells]


def executed(file: pathlib.Path) -> nbformat.NotebookNode:
  """A tutorial with its outputs, without what depends on when and where it ran."""
  notebook = jupytext.read(file)
  NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
  notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python",
                                      "name": "python3"}}
  for number, cell in enumerate(notebook.cells):
    cell.id, cell.metadata = f"cell-{number}", {}
    if cell.cell_type == "code":
      cell.outputs = [cleaned(each) for each in cell.outputs if each.get("name") != "stderr"]
  return notebook


def cleaned(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
  """An output with one picture of each, and paths that begin at the root of the repository."""
  if "text" in output:
    output.text = output.text.replace(f"{ROOT}/", "")
  if "image/png" in output.get("data", {}):
    output.data.pop("image/jpeg", None)
  return output


if __name__ == "__main__":
  # Cells run in folders of their own, and shall import this checkout.
  os.environ["PYTHONPATH"] = str(ROOT)
  for tutorial in TUTORIALS:
    nbformat.write(executed(tutorial), tutorial.with_suffix(".ipynb"))
    print(f"written: {tutorial.with_suffix('.ipynb').relative_to(ROOT)}")
