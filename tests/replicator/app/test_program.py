"""The program of a run is imported as it was run: with its command line, or as a package."""

import sys

import pytest

from replicator.app.program import main_of_run
from tests.replicator.app.trained_runs import facts_for

pytestmark = pytest.mark.usefixtures("restored", "programs_forgotten")


def test_a_program_gets_the_command_line_of_its_run(tmp_path):
  file = tmp_path / "load_test_words.py"
  file.write_text("import sys\nfrom replicator import app\n\n\ndef main(workdir):\n"
                  "  raise NotImplementedError\n\n\nif __name__ == \"__main__\":\n"
                  "  main.words = sys.argv\n  app.run(main)\n")
  words = list(sys.argv)
  main = main_of_run({**facts_for(file), "argv": ["--size=3"]})
  assert main.words == [str(file), "--size=3"] and sys.argv == words


def test_a_package_is_run_by_its_main_module(tmp_path):
  package = tmp_path / "load_test_package"
  package.mkdir()
  (package / "__init__.py").write_text("")
  (package / "__main__.py").write_text("from replicator import app\n\n\ndef main(workdir):\n"
                                       "  raise NotImplementedError\n\n\n"
                                       "if __name__ == \"__main__\":\n  app.run(main)\n")
  sys.path.insert(0, str(tmp_path))
  main = main_of_run({**facts_for(package / "__main__.py"), "program": ["-m", package.name]})
  assert main is sys.modules["load_test_package.__main__"].main
