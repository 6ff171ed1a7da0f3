"""Hook of mkdocs: README, CONTRIBUTING and CHANGELOG are pages of the site, each from its one file.

GitHub shows these files at the root of the repository, so their links start there.
"""

import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md",
         "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages."""
  root = pathlib.Path(config.config_file_path).parent
  for source, page in PAGES.items():
    text = from_docs((root / source).read_text(encoding="utf-8"))
    files.append(File.generated(config, page, content=text))
  return files


def on_serve(server, config: MkDocsConfig, **_):
  """Rebuilds the site when one of the files changes."""
  for source in PAGES:
    server.watch(str(pathlib.Path(config.config_file_path).parent / source))
  return server


def from_docs(text: str) -> str:
  """The same Markdown with links as a page of `docs/` writes them."""
  text = re.sub(r"\]\(docs/", "](", text)
  for source, page in PAGES.items():
    text = re.sub(rf"\]\({re.escape(source)}(?=[)#])", f"]({page}", text)
  return text
