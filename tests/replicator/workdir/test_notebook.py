"""The short report under the cell of a notebook."""

import numpy as np

from replicator.workdir import notebook as notebook_lib
from replicator.workdir.writer import WorkdirWriter
from tests.replicator.workdir.conftest import Text


def test_a_short_report_is_brought_up_to_date_with_the_long_one(notebook, tmp_path):
  writer = WorkdirWriter(tmp_path, {"steps": 3})
  for step in (1, 2, 3):
    writer.metrics(step, 1.0, {"d<": 4.0 / step, "grad_norm/d": 1.0, "eval/distance": 2.0,
                               "data_wait": 0.1})
    writer.report()
  writer.report("")
  (versions,) = notebook
  assert len(versions) == 2  # That at step 2 was too recent.
  text = Text(versions[-1])
  assert "d< 1.333" in text.words and "eval/distance 2" in text.words
  assert "grad_norm" not in text.words and "data_wait" not in text.words
  assert text.tags.count("svg") == 2 and not text.images


def test_it_has_the_newest_picture(notebook, workdir):
  notebook_lib.LiveReport(workdir).show()
  page = Text(notebook[0][0])
  assert len(page.images) == 1 and "step-00000300" in page.words


def test_a_program_has_none(tmp_path):
  writer = WorkdirWriter(tmp_path, {"steps": 1})
  writer.picture(1, np.zeros([4, 4, 3], np.uint8))
  assert writer.report("") == "" and writer._live_report is None
