"""`sweep.html`."""

import re

from replicator.sweeps import page


def test_the_page_shows_all_and_needs_nothing_else(ranked, tmp_path, page_file):
  page.write(tmp_path, ranked, page_file, 12)
  text = (tmp_path / "sweep.html").read_text()
  assert not re.search(r"(src|href)=.(?!#)|url\((?!#)|@import|<script", text)
  assert "<small>" not in re.sub(r"<small>Sweep of", "", text)  # What users write is escaped.
  assert "lowest eval/loss is best" in text and "8m 08s in all" in text
  assert "7 of 12 done, 1 failed" in text and "error: &lt;it&gt; broke" in text
  assert "mean and spread over the seeds" in text
  ranks = [text.index(f'<tr id="{result.record.id}"') for result in ranked]
  assert ranks == sorted(ranks)
  for name in ("best eval/loss", "last", "lr", "net", "seed", "step", "time"):
    assert text.count(f'<td data-name="{name}">') == len(ranked)  # A phone shows the name there.
  panels = text[text.index("A curve per trial"):]
  assert panels.count("<figure") == 4 and panels.count("seed 1</span>") == 4


def test_a_sweep_that_has_not_begun_has_a_page(tmp_path, page_file):
  page.write(tmp_path, [], page_file, 4)
  assert "0 of 4 done" in (tmp_path / "sweep.html").read_text()


def test_a_trial_links_to_its_report_if_there_is_one(ranked, tmp_path, page_file, without_curves):
  path = f"trials/{ranked[1].record.id}/report.html"
  (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
  (tmp_path / path).touch()
  page.write(tmp_path, ranked, page_file, 12)
  text = (tmp_path / "sweep.html").read_text()
  assert re.findall(r'<th>(\d) <a href="([^"]+)">report</a>', text) == [("2", path)]
