"""Pages: what every template gets, and that an installed package has the templates."""

import pathlib
import re

from replicator.training.workdir import charts, pages
from tests.programs.processes import ROOT, python

import jinja2
import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  """A folder with `page.html`, a template that uses the layout and the parts."""
  (tmp_path / "page.html").write_text(
      '{% extends "layout.html" %}{% from "parts.html" import panels, section %}'
      '{% block content %}{% call section("Charts", "panels") %}{{ panels(charts) }}{% endcall %}'
      "{{ value | number }}{% endblock %}")
  return tmp_path


def render(folder: pathlib.Path, **values: object) -> str:
  return pages.render("page.html", folder, **{"title": "t", "what": "w", "badges": [], "charts": [],
                                              "value": 0.5, **values})


def test_a_template_of_another_folder_uses_the_shared_parts(folder):
  badges = [pages.Badge("done", "good"), pages.Badge("mirrored")]
  page = render(folder, badges=badges, charts=[pages.Panel("loss", "<svg></svg>")], value=0.123456)
  assert "<title>t: w</title>" in page and "<h2>Charts</h2>" in page and "0.1235" in page
  assert '<span class="good">done</span>\n<span>mirrored</span>' in page
  assert re.search(r'<figure class="training"><figcaption>loss</figcaption>\s*<svg></svg>', page)


def test_everything_but_charts_is_escaped(folder):
  evil = "<b>&"
  panel = pages.Panel(evil, "<svg></svg>", evil, evil, evil, [evil])
  page = render(folder, title=evil, what=evil, badges=[pages.Badge(evil, evil)], charts=[panel])
  assert evil not in page and page.count("&lt;b&gt;&amp;") == 11
  assert "<svg></svg>" in page
  templates = (ROOT / "replicator").rglob("*.html")  # No other part lets anything pass.
  assert {(path.name, value) for path in templates
          for value in re.findall(r"([\w.]+) *\| *safe", path.read_text())} == {
              ("parts.html", "panel.chart"), ("notebook.html", "panel.chart")}


def test_a_narrow_page_breaks_a_title_behind_its_underscores(folder):
  assert "<h1>gan_<wbr>digits_<wbr>&lt;b&gt;</h1>" in render(folder, title="gan_digits_<b>")


def test_a_missing_value_is_an_error(folder):
  with pytest.raises(jinja2.UndefinedError, match="'title' is undefined"):
    pages.render("page.html", folder, what="w", badges=[], charts=[], value=0.5)


def test_a_small_picture_shows_its_pixels(tmp_path):
  for width, is_coarse in ((399, True), (400, False)):
    Image.new("RGB", (width, 8)).save(tmp_path / "a.png")
    picture = pages.picture(tmp_path / "a.png", "step 1")
    assert picture.is_coarse == is_coarse and picture.url.startswith("data:image/png;base64,")


def test_the_style_sheet_has_the_colors_of_charts_for_light_and_dark_screens():
  light, dark = (pages.TEMPLATES / "style.css").read_text().split("prefers-color-scheme: dark")
  line = np.arange(2), np.arange(2.0)
  drawn = charts.curves([line] * 20) + charts.key(3)
  variables = set(re.findall(r"var\((--\w+)\)", drawn))
  assert "--curve7" in variables
  for variable in variables:
    assert f"{variable}: #" in light and f"{variable}: #" in dark


def test_an_installed_package_has_all_files_that_are_not_modules(tmp_path):
  python("-c", "import setuptools; setuptools.setup()", "-q", "egg_info", f"--egg-base={tmp_path}",
         "build_py", f"--build-lib={tmp_path}/built")

  def files(root: pathlib.Path) -> set[str]:
    return {str(path.relative_to(root)) for path in (root / "replicator").rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc")}

  assert "replicator/training/workdir/templates/layout.html" in files(tmp_path / "built")
  assert files(tmp_path / "built") == files(ROOT)
