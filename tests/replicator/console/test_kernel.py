"""The progress in a notebook: one line of the output, written again."""

import io

from rich.console import Console

from replicator.console import kernel
from replicator.console.progress import Progress


def test_a_notebook_is_a_kernel_and_a_program_is_none(request):
  assert not kernel.is_kernel()
  request.getfixturevalue("notebook")
  assert kernel.is_kernel()


def test_the_progress_is_one_line_that_does_not_change_too_often(notebook):
  out = io.StringIO()
  with Progress(1000, 64, console=Console(file=out)) as progress:
    progress.note("a line that stays")
    for step in range(1, 1001):
      progress.update(step, {"a < b": 2.0})
  assert out.getvalue() == "a line that stays\n"
  (line,) = notebook
  assert len(line) < 20 and "1000/1000" in line[-1] and "a &lt; b 2" in line[-1]
