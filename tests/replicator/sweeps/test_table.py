"""The progress of a sweep on standard output."""

import io
import re

import pytest
from rich.console import Console

from replicator.sweeps import trials
from replicator.sweeps.table import Table


@pytest.mark.parametrize("height, shown", [(50, 8), (10, 4)])
def test_the_live_table_fits_the_terminal(ranked, height, shown, page_file):
  ranked[5].record.status = trials.RUNNING
  console = Console(file=io.StringIO(), force_terminal=True, width=120, height=height,
                    color_system=None)
  with Table(page_file.metric, console) as table:
    table.show([result for result in ranked if result.is_current], 8)
  last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "\n", console.file.getvalue()).rpartition("lr ")[2]
  lines = [line for line in last.splitlines() if "done" in line or "running" in line
           or "failed" in line]
  assert sum("1m 01s" in line for line in lines) == shown
  assert any("running" in line for line in lines[:-1])
  assert "6 of 8 done, 1 running, 1 failed" in lines[-1]


def test_without_a_terminal_each_end_is_a_line(ranked, page_file):
  console = Console(file=io.StringIO(), width=40)
  with Table(page_file.metric, console) as table:
    table.show(ranked, 8)
    table.ended(ranked[0])
    table.ended(next(result for result in ranked if result.record.id == "t0"))
  first, second = console.file.getvalue().splitlines()
  assert first == f"done    {ranked[0].record.id}  eval/loss 1  1m 01s"
  assert second == "failed  t0  1m 01s  error: <it> broke"

