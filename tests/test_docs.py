"""README, docs, heads of gin files: what they show runs, and every public name has its place."""

import ast
import configparser
import contextlib
import functools
import importlib
import importlib.util
import io
import itertools
import pathlib
import re
import runpy
import sys

import replicator
from replicator import app
from replicator.app import config
from replicator.configuration.configurables import defaults
from replicator.configuration.gin_internals import registry
from replicator.console import gin_files, programs
from replicator.tools.sweeps import sweep_file
from tests import pages
from tests.pages import BLOCKS, COMMANDS, PAGES, ROOT, STEP, Block
from tests.programs import logs, reference

import gin
import numpy as np
import pytest

OTHER_PROGRAMS = {"python3", ".", "pip", "pytest", "ruff", "mypy", "mkdocs", "tensorboard",
                  "optuna-dashboard", "ray", "sbatch", "kubectl"}
for name in ("bigan", "bigbigan", "cyclegan", "d4pg", "diffusion", "dmd2", "domain_adaptation",
             "dqn", "gan", "logan", "maml", "mpo", "ppo", "r3gan", "resnet", "sac",
             "self_supervision", "sngan", "td3", "vqgan", "world_model"):
  importlib.import_module(f"experiments.{name}")  # So that gin knows its names.
# So that `replicator.load` can import a program.
GUARDED = re.compile(r'\nif __name__ == "__main__":\n  (replicator\.)?app\.run\(')
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.py"))  # The site executes them.
FEW_STEPS = {"train.steps": 4, "train.log_every": 2, "train.eval_every": 2,
             "train.checkpoint_every": 2, "train.steps_per_call": 1,
             "Replicator.jit_compile": False}


# ---- Every block --------------------------------------------------------------------------------


def test_every_block_runs_or_is_marked_as_a_fragment():
  assert len(BLOCKS) > 40
  for block in BLOCKS:
    assert block.language in pages.LANGUAGES, f"{block.where}: not of {sorted(pages.LANGUAGES)}"
    if block.language == "python":
      compile(block.text, block.where, "exec")
      assert block.is_fragment or block.title or block is STEP, f"{block.where}: give it a title"
      assert "app.run(" not in block.text or GUARDED.search(block.text), (
          f"{block.where}: app.run must stand below if __name__")
  assert len(pages.FILES) == len(pages.PROGRAMS), "two programs have the same name"


def test_readme_takes_three_minutes():
  assert len(pages.README.read_text().splitlines()) <= 200
  assert len(STEP.text.strip().splitlines()) <= 75


# ---- Programs -----------------------------------------------------------------------------------


def run(block: Block, flags: list[str], folder: pathlib.Path, monkeypatch) -> list[dict]:
  """Runs a program in this process, where TensorFlow is loaded; the rows that it logs."""
  file = folder / (block.title or "my_step.py")
  file.write_text(block.text)
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(sys, "argv", [str(file), *flags, f"--workdir={folder / 'run'}"])
  with pytest.raises(SystemExit) as end:
    runpy.run_path(str(file), run_name="__main__")
  assert end.value.code == 0
  return logs.rows(folder / "run")


def params(values: dict[str, object]) -> list[str]:
  return [f"--gin_param={name} = {value!r}" for name, value in values.items()]


TWO_REPLICAS = params({"train.steps": 20, "train.log_every": 10, "train.eval_every": 20,
                       "Replicator.strategy": "mirrored", "Replicator.logical_cpus": 2})


def test_custom_step_trains_on_two_replicas(tmp_path, monkeypatch):
  rows = run(STEP, TWO_REPLICAS, tmp_path, monkeypatch)
  losses = ("loss/discriminator", "loss/generator", "loss/encoder")
  trained = [row for row in rows if losses[0] in row]
  assert [row["step"] for row in trained] == [10, 20]
  assert np.isfinite([[row[name] for name in losses] for row in trained]).all()
  error = "eval/reconstruction_error"
  measured = [row[error] for row in rows if error in row]
  assert len(measured) == 2 and np.isfinite(measured).all()
  assert (tmp_path / "run/samples/step-00000020.png").exists()


def test_a_step_trains_in_every_precision(tmp_path, monkeypatch):
  losses = {}
  for precision in ("float64", "float32", "mixed_bfloat16", "mixed_float16"):
    (tmp_path / precision).mkdir()
    rows = run(pages.FILES["in_any_precision.py"],
               ["--eager", *params({"train.steps": 2, "train.log_every": 1,
                                    "train.precision": precision})],
               tmp_path / precision, monkeypatch)
    losses[precision] = [row["loss"] for row in rows]
  assert np.isfinite(losses["float64"]).all()  # Its initial weights are others.
  for half in ("mixed_bfloat16", "mixed_float16"):
    np.testing.assert_allclose(losses[half], losses["float32"], rtol=0.02)


@pytest.mark.parametrize("block", [block for block in pages.PROGRAMS if block is not STEP],
                         ids=lambda block: block.title)
def test_program_runs(block, tmp_path, monkeypatch, capsys):
  if "app.run(" in block.text:
    shown = next((words for words in COMMANDS.values() if words[:2] == ["python", block.title]), [])
    flags = [flag for flag in shown[2:] if not flag.startswith("--gin_param=train.")]
    sets_steps = " steps=" in block.text  # Then gin cannot.
    rows = run(block, flags + ([] if sets_steps else params(FEW_STEPS)), tmp_path, monkeypatch)
    logged = [row["step"] for row in rows if any(name.startswith("loss") for name in row)]
    assert len(logged) > 1 if sets_steps else logged == [2, 4]
    return
  exec(compile(block.text, block.where, "exec"), {})
  page = f"{block.where.partition(':')[0]}:"
  following = [each for each in BLOCKS[BLOCKS.index(block) + 1:][:1] if each.where.startswith(page)]
  if following and following[0].language == "text":
    assert capsys.readouterr().out == following[0].text


def test_the_diff_of_the_readme_is_of_the_ported_gan():
  ported = pages.changes("keras_gan", "keras_gan_ported")
  (shown,) = (block.text.splitlines() for block in BLOCKS
              if block.language == "diff" and block.where.startswith("README"))
  assert len(shown) > 8 and not [line for line in shown if line not in ported]


def test_the_notebooks_have_the_cells_of_the_tutorials():
  jupytext = pytest.importorskip("jupytext")  # Of the extra `docs`.
  for tutorial in TUTORIALS:
    written, notebook = jupytext.read(tutorial), jupytext.read(tutorial.with_suffix(".ipynb"))
    assert ([cell.source for cell in written.cells] == [cell.source for cell in notebook.cells]), (
        f"{tutorial.name}: python -m tests.programs.notebooks")


# ---- Commands -----------------------------------------------------------------------------------


@functools.cache
def flags_of(module: str) -> set[str]:
  """The flags of a program."""
  if module.startswith("benchmarks."):  # Its --help would load every framework.
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    if "turns.define_flags" in source:
      source += (ROOT / "benchmarks/turns.py").read_text()
    return {f"--{name}" for name in re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)}
  imported = importlib.import_module(module)
  if hasattr(imported, "__path__"):  # A package.
    imported = importlib.import_module(f"{module}.__main__")
  # An experiment has none of its own.
  main = getattr(imported, "main", lambda words: app.run(lambda workdir: None, words))
  with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit):
    main(["--help"])
  return set(re.findall(r"--\w+", shown.getvalue()))


def check_flags(module: str, words: list[str]) -> None:
  for word in words:
    if word.startswith("--"):
      assert word.partition("=")[0] in flags_of(module), f"{word}: no such flag"


@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_command_is_one_that_works(words, monkeypatch):
  monkeypatch.chdir(ROOT)
  while "--" in words:  # A launcher, and what it starts.
    end = words.index("--")
    check_flags(*programs.program_of(words[1:end]))
    words = words[end + 1:]
  if words[0] not in ("python", "replicator"):
    assert words[0] in OTHER_PROGRAMS
    return
  for option in ("--gin_file", "--sweep_file"):
    for file in pages.values_of(words, option):
      assert pathlib.Path(gin_files.found(file)).is_file(), file
  for experiment in pages.values_of(words, "--experiment"):
    assert experiment in pages.FILES or importlib.util.find_spec(experiment)
  if words[0] == "replicator":
    check_flags(*programs.program_of(words[1:]))
  elif words[1] != "-m":
    assert words[1] in pages.FILES, f"no page has {words[1]}"
  elif words[2] != "pytest":
    assert importlib.util.find_spec(words[2]), f"no module {words[2]}"
    check_flags(words[2], words[3:])
  for file in pages.values_of(words, "--sweep_file"):
    sweep_file.read(file, pages.values_of(words, "--sweep_param"))
  config.parse(pages.values_of(words, "--gin_file"), pages.values_of(words, "--gin_param"))


def test_flags_in_the_tables_of_programs_exist():
  text = (ROOT / "docs/reference/command_line.md").read_text()
  rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| `")]
  own = [row[0] for row in rows if row[0].startswith("| `--")]
  assert {re.search(r"--\w+", cell)[0] for cell in own} == (
      flags_of("experiments.sngan") - {"--help"})
  by_command = {row[0].split()[-1].strip("`"): row[2] for row in rows
                if row[0].startswith("| `replicator ") and len(row) == 3}
  assert by_command.keys() == programs.COMMANDS.keys()
  for command, flags in by_command.items():
    assert set(re.findall(r"--\w+", flags)) == flags_of(programs.COMMANDS[command]) - {"--help"}


# ---- Configurations -----------------------------------------------------------------------------


GIN = {block.where: block.text for block in BLOCKS if block.language == "gin"}
BINDING = re.compile(r"`((?:\w+/)*[\w.]+\.\w+ = [^`]+)`")
INLINE = sorted({(page.name, binding) for page in PAGES
                 for binding in BINDING.findall(page.read_text())
                 if page.name != "capabilities.md"})


def parse(text: str, file: pathlib.Path) -> None:
  """Reads gin as strictly as a run does, or as a sweep."""
  file.write_text(text)
  if text.startswith("sweep."):
    needed = {"experiment": "'experiments.sngan'", "metric": "'eval/return'", "seeds": "[1]"}
    if "sweep.population =" in text:  # It has no seeds.
      del needed["seeds"]
    missing = [f"sweep.{name} = {value}" for name, value in needed.items()
               if f"sweep.{name} =" not in text]
    sweep_file.read(str(file), missing)
  else:
    config.parse([str(file)], [])


def test_the_page_of_the_configuration_has_every_setting_of_a_training_with_its_default():
  page = (ROOT / "docs/reference/configuration.md").read_text()
  rows = re.findall(r"^\| `((?:train|Replicator|microbatch)\.\w+)` \| `?(.+?)`? \| ", page,
                    re.MULTILINE)
  assert sorted(rows) == sorted(
      (f"{name}.{parameter}", "required" if value is gin.REQUIRED else repr(value))
      for name in ("train", "Replicator", "microbatch")
      for parameter, value in defaults(registry()[f"replicator.{name}"]).items())


@pytest.mark.parametrize("where", GIN)
def test_gin_block_is_valid(where, tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  parse(GIN[where], tmp_path / "shown.gin")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "gin"
                                   and block.title], ids=lambda block: block.title)
def test_a_file_with_a_title_is_shown_as_it_is(block):
  (file,) = (ROOT / "configs").rglob(block.title)
  lines = file.read_text().splitlines(keepends=True)
  is_head = lambda line: line.startswith("#") or not line.strip()
  assert block.text == "".join(itertools.dropwhile(is_head, lines))


def test_bindings_in_the_text_are_valid(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert len(INLINE) > 10
  for page, binding in INLINE:
    try:
      parse(f"{binding}\n", tmp_path / "shown.gin")
    except replicator.UsageError as error:
      raise AssertionError(f"{page}: `{binding}`: {error}") from error


# ---- Names and links ----------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference():
  text = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
  listed = re.findall(r"^::: replicator\.(\w+)$", text, re.MULTILINE)
  assert sorted(listed) == sorted(replicator.__all__)
  for name in re.findall(r"^::: replicator\.(\w+\.\w+)$", text, re.MULTILINE):
    module, attribute = name.split(".")
    assert hasattr(getattr(replicator, module), attribute)
  assert app.run.__doc__ and app.main_of.__doc__


def test_the_page_of_all_names_is_what_the_code_says():
  assert (ROOT / "docs/reference/names.md").read_text() == reference.document(), reference.COMMAND


def test_every_part_that_gin_knows_is_in_the_reference():
  text = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
  parts = [f"::: {'.'.join(file.relative_to(ROOT).with_suffix('').parts)}.{node.name}\n"
           for folder in ("models", "experiments")
           for file in (ROOT / folder).rglob("*.py") for node in ast.parse(file.read_text()).body
           if "gin.configurable" in map(ast.unparse, (
               getattr(each, "func", each) for each in getattr(node, "decorator_list", ())))]
  assert len(parts) > 100 and not [part for part in parts if part not in text]


def test_the_scopes_of_each_experiment_are_in_the_reference():
  page = (ROOT / "docs/reference/experiments.md").read_text()
  rows = re.findall(r"^\| `experiments.(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE)
  assert len(rows) > 20
  for name, listed in rows:
    file = ROOT / "experiments" / f"{name}.py"
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    scopes = [keyword.arg for call in calls if ast.unparse(call.func).endswith("wrap_optimizers")
              for keyword in call.keywords if keyword.arg not in (None, "policy_delay")]
    assert set(scopes) <= set(re.findall(r"`(\w+)/`", listed)), name


def test_the_index_of_the_reference_has_the_names_of_each_page():
  index = (ROOT / "docs/reference/index.md").read_text()
  home = r"(?:replicator\.(?:step|training|tools)|models|experiments)\.(?:\w+\.)+"
  for page in (ROOT / "docs/reference").glob("*.md"):
    names = re.findall(rf"^::: (?:{home}|replicator\.)([\w.]+)$", page.read_text(), re.MULTILINE)
    row = re.search(rf"\]\({page.name}\) \| (.*) \|$", index, re.MULTILINE)
    assert page.name == "index.md" or re.findall("`(.+?)`", row[1]) == names, page.name


def test_extras_are_installed_from_the_clone():
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  for page in PAGES:
    assert "install 'replicator" not in page.read_text(), f"{page.name}: no index has the package"
    for named in re.findall(r"install -e '\.\[([\w,]+)\]'", page.read_text()):
      assert set(named.split(",")) <= set(setup["options.extras_require"]), page.name


def test_every_claim_has_a_test_that_exists():
  text = (ROOT / "docs/explain/claims.md").read_text()
  rows = re.findall(r"^\| .+ \| `(tests/.+\.py)::(test_\w+)` \|$", text, re.MULTILINE)
  assert len(rows) >= 20 and len(rows) == text.count("::")
  for file, name in rows:
    assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_every_page_is_in_the_navigation():
  navigation = (ROOT / "mkdocs.yml").read_text()
  for page in [*(ROOT / "docs").rglob("*.md"), *TUTORIALS]:
    assert f" {page.relative_to(ROOT / 'docs')}" in navigation, page.name


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS, ROOT / "CHANGELOG.md"],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
  text = page.read_text()
  named = re.findall(r"\b((?:configs|benchmarks|docs|experiments|tests)/[\w/]+\.\w+)", text)
  for name in named:
    assert (ROOT / name).exists(), name
  for link in re.findall(r"\]\(([^)]+)\)", text):
    file, _, anchor = link.partition("#")
    linked = page.parent / file if file else page
    assert link.startswith("https://") or linked.exists(), link
    if anchor and not link.startswith("https://"):
      assert anchor in pages.anchors_of(linked), link
