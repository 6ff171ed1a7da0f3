"""The program of a run is imported as it was run: with its command line, or as a package."""

import sys

import pytest

from replicator.app.program import main_of_run
from tests.replicator.app.trained_runs import facts_for

pytestmark = pytest.mark.usefixtures("restored")


def test_a_program_gets_the_command_line_of_its_run(tmp_path):
  file = tmp_path / "load_test_words.py"
  file.write_text("import sys\nfrom replicator import app\n\n\ndef main(workdir):\n"
                  "  raise NotImplementedError\n\n\nif __name__ == \"__main__\":\n"
                  "  main.words = sys.argv\n  app.run(main)\n")
  words = list(sys.argv)
  try:
    main = main_of_run({**facts_for(file), "argv": ["--size=3"]})
  finally:
    sys.modules.pop(file.stem, None)
    sys.path.remove(str(tmp_path))
  assert main.words == [str(file), "--size=3"] and sys.argv == words


def test_a_package_is_run_by_its_main_module(tmp_path, monkeypatch):
  package = tmp_path / "load_test_package"
  package.mkdir()
  (package / "__init__.py").write_text("")
  (package / "__main__.py").write_text("from replicator import app\n\n\ndef main(workdir):\n"
                                       "  raise NotImplementedError\n\n\n"
                                       "if __name__ == \"__main__\":\n  app.run(main)\n")
  monkeypatch.syspath_prepend(tmp_path)
  try:
    main = main_of_run({**facts_for(package / "__main__.py"), "program": ["-m", package.name]})
    assert main is sys.modules["load_test_package.__main__"].main
  finally:
    for name in ("load_test_package.__main__", "load_test_package"):
      sys.modules.pop(name, None)
