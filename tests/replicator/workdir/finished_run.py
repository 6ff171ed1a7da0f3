"""The files of a finished run, and its page as a reader sees it."""

import html.parser
import json

from replicator.workdir import report

CONFIG = "# Parameters for train:\ntrain.steps = 300\nSNGAN.note = '<b>&'\n"
FACTS = {"command": "python -m experiments.sngan --gin_param='train.steps = 300'",
         "started": "2026-02-03T10:11:12+00:00", "git_commit": None, "strategy": "mirrored",
         "versions": {"python": "3.11.9", "tensorflow": "2.21.0"}, "num_replicas": 2,
         "global_batch_size": 64, "precision": "float32", "steps": 300, "experiment": "sngan"}


def write_metrics(workdir, rows):
  workdir.joinpath("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Text(html.parser.HTMLParser):
  """The words of a page, the sources of its pictures, and its tags."""

  def __init__(self, page: str):
    super().__init__()
    self.words, self.images, self.tags = "", [], []
    self._hidden = False
    self.feed(page)

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)
    self._hidden = tag == "style"
    if tag == "img":
      self.images.append(dict(attributes)["src"])

  def handle_data(self, data):
    self.words += "" if self._hidden else data + " "


def written(workdir) -> Text:
  path = report.write_report(workdir)
  assert path == workdir / "report.html"
  return Text(path.read_text())
