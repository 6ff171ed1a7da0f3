"""Hooks of mkdocs: README, CONTRIBUTING and CHANGELOG are pages of the site, each from one file.

GitHub shows these files at the root of the repository, so their links start there.
"""

import logging
import pathlib
import posixpath
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_log = logging.getLogger("mkdocs.hooks")

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md",
         "CHANGELOG.md": "changelog.md"}
ELSEWHERE = r"tests/|SECURITY\.md|CITATION\.cff"


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages."""
  for file, page in PAGES.items():
    text = (_root(config) / file).read_text(encoding="utf-8")
    files.append(File.generated(config, page, content=seen_from_docs(text)))
  return files


def on_serve(server: LiveReloadServer, config: MkDocsConfig, **_: Any) -> LiveReloadServer:
  """Makes `mkdocs serve` build the site again when one of the files changes."""
  for file in PAGES:
    server.watch(str(_root(config) / file))
  return server


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
  """Gives a page the width of what is empty beside it: the navigation, the table of contents.

  Files of the repository that are no pages of the site are named there without a link.
  """
  alone = page.parent is None
  has_sections = re.search(r"^(# )?## |^::: ", markdown, re.MULTILINE) is not None
  page.meta["hide"] = ["navigation"] * alone + ["toc"] * (not has_sections)
  return re.sub(rf"\[([^\]]+)\]\((?:\.\./)*(?:{ELSEWHERE})[^)]*\)", r"\1", markdown)


def on_page_content(html: str, page: Page, files: Files, **_: Any) -> str:
  """Makes the links of a notebook, which mkdocs leaves as they are, and fetches nothing for it.

  Elsewhere, the names in headings of the reference may break after a dot, on a narrow screen.
  """
  if not page.file.src_uri.endswith(".py"):
    return re.sub(r'(?<=<span class="doc doc-object-name )[^<]+',
                  lambda name: name[0].replace(".", ".<wbr>"), html)

  def link(match: re.Match) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    file = files.get_file_from_path(posixpath.normpath(posixpath.join(folder, match[1])))
    if file is None:
      _log.warning("%s: no page is called %s", page.file.src_uri, match[1])
      return match[0]
    return f'href="{file.url_relative_to(page.file)}{match[2]}"'

  # The scripts for formulas and diagrams, of which there are none.
  html = re.sub(r"<script(?:(?!</script>).)*?https?://.*?</script>", "", html, flags=re.DOTALL)
  return re.sub(r'href="([^":#]+\.(?:md|py))([^"]*)"', link, html)


def seen_from_docs(text: str) -> str:
  """The same Markdown, its links written as in a page of `docs/`."""
  text = text.replace("](docs/", "](")
  text = re.sub(r"(\]\(tutorials/\w+)\.ipynb", r"\1.py", text)  # The site executes these.
  for file, page in PAGES.items():
    text = re.sub(rf"\]\({re.escape(file)}(?=[)#])", f"]({page}", text)
  return text


def _root(config: MkDocsConfig) -> pathlib.Path:
  return pathlib.Path(config.config_file_path).parent
