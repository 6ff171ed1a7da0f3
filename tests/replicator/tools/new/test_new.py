"""New projects: what is written, and that it trains, is proved and runs as a notebook."""

import json

from replicator.tools.new.__main__ import main
from tests.programs.processes import forked

import pytest

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def files_of(project) -> list[str]:
  return sorted(file.relative_to(project).as_posix() for file in project.rglob("*")
                if file.is_file())


def test_a_project_is_written(tmp_path, capsys):
  assert main(["mine"]) == 0
  project = tmp_path / "mine"
  assert files_of(project) == [
      ".dockerignore", ".gitignore", "Dockerfile", "README.md", "configs/mine.gin",
      "experiments/mine.py", "mine.ipynb", "models/mine.py", "pyproject.toml", "tests/test_mine.py"]
  assert not any("PROJECT" in (project / name).read_text() for name in files_of(project))
  assert capsys.readouterr().out.endswith(
      "next: cd mine; python -m experiments.mine --gin_file=mine.gin\n")


@pytest.mark.slow
def test_a_new_project_trains_as_its_notebook_in_half_precision_too(tmp_path):
  main(["mine"])
  project = tmp_path / "mine"
  cells = json.loads((project / "mine.ipynb").read_text())["cells"]
  code = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
  few = '"train.steps = 2", "train.precision = \'mixed_float16\'"'
  forked("-c", code.replace('"train.steps = 500"', few), cwd=project)
  assert len(list((project / "runs" / "notebook" / "samples").glob("*.png"))) == 2


def test_a_project_begins_with_a_copy_of_an_experiment(tmp_path, capsys):
  assert main(["mine", "--from=sngan"]) == 0
  project = tmp_path / "mine"
  assert "models/mine.py" not in files_of(project)
  assert "models/" not in (project / "README.md").read_text().split("| file |")[1].split("\n\n")[0]
  program = (project / "experiments" / "mine.py").read_text()
  assert "python -m experiments.mine --gin_file=mine.gin" in program
  assert "app.run(train_mine)" in program
  assert "\ntrain_mine.data = @Digits\n" in (project / "configs" / "mine.gin").read_text()


@pytest.mark.slow
def test_a_copy_of_an_experiment_trains(tmp_path):
  main(["mine", "--from=sngan"])
  forked("-m", "experiments.mine", "--gin_file=mine.gin", "--gin_param=train.steps = 1",
         "--gin_param=train.eval_every = 0", "--eager", cwd=tmp_path / "mine")


@pytest.mark.parametrize("words, line", [
    (["De-mo"], "De-mo: is also the name of a Python module; use lowercase letters, "),
    (["gan"], "gan: Replicator has a module of this name, which yours would hide; "),
    (["class"], "class: already means something else in the program; choose another name"),
    (["app"], "app: already means something else in the program"),
    (["tf", "--from=sngan"], "tf: already means something else in the program"),
    (["here"], "here: already exists; choose another name, or move it"),
    (["mine", "--from=sgan"], "--from=sgan: no such experiment, or its docstring does not "
                              "show a gin file. Did you mean 'sngan'?")])
def test_what_cannot_be_written_is_one_line(tmp_path, words, line, capsys):
  (tmp_path / "here").mkdir()
  assert main(words) == 2
  assert capsys.readouterr().err.startswith(f"error: {line}")
  assert not (tmp_path / "mine").exists()


@pytest.mark.slow
def test_the_proofs_of_a_project_pass(tmp_path):
  main(["mine"])
  forked("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / "mine")
