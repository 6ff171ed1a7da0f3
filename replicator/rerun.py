"""Runs a run again, from the files of its workdir alone: `python -m replicator.rerun RUN`.

    python -m replicator.rerun RUN [--workdir=DIR] [--exact]

The new run has the command, the environment and the number of processes that RUN's `run.json`
tells, and the configuration of RUN's `config.gin`: the gin files may have changed since, or be
gone. What is not as it was then (code, versions, machine) is told before it starts; with `--exact`
it does not start if there is such a thing. The code is the one that is there now: `run.json` has
the commit, and `changes.diff` what was changed on top of it.

Without `--workdir` the new run is beside the old one: `RUN-rerun`. The same command resumes it.

Exit status: that of the run; 1 when `--exact` finds a difference; 2 bad command line, or files that
are missing or torn.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.console import quiet
from replicator.console.flags import Parser
from replicator.errors import UsageError
from replicator.workdir import provenance

_FROM_FILES = ("--gin_file", "--gin_param", "--workdir")  # Flags that take a value.
_NEEDED = ("program", "program_file", "argv", "working_directory")


@dataclasses.dataclass(frozen=True)
class Command:
  """How a run is made again.

  Attributes:
    words: the program and its arguments.
    folder: the working directory.
    environment: all its variables.
  """

  words: list[str]
  folder: str
  environment: dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
  """Becomes the run that the command line `argv` asks for; returns only when it does not start."""
  try:
    flags = _parse(argv)
    run = pathlib.Path(flags.run).resolve()
    facts = read_facts(run)
    workdir = pathlib.Path(flags.workdir or f"{run}-rerun").resolve()
    command = make_command(run, facts, workdir, os.environ)
  except UsageError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  changed = differences(facts, now(facts), run)
  for line in changed:
    print(f"differs now: {line}")
  if changed and flags.exact:
    print("error: --exact: not started, as it may not give the same numbers", file=sys.stderr)
    return 1
  if not changed:
    print("nothing that this run recorded differs now")
  print(f"runs again in {workdir}: {shlex.join(command.words)}", flush=True)
  os.chdir(command.folder)
  os.execve(command.words[0], command.words, command.environment)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = Parser(prog="python -m replicator.rerun", allow_abbrev=False,
                  description="Runs a run again, from the files of its workdir.")
  parser.add_argument("run", metavar="RUN", help="the workdir of a run")
  parser.add_argument("--workdir", metavar="DIR", help="of the new run; RUN-rerun by default")
  parser.add_argument("--exact", action="store_true",
                      help="do not start when code, versions or machine differ")
  return parser.parse_args(argv)


def read_facts(run: pathlib.Path) -> dict[str, Any]:
  """What `run.json` says, whole.

  Raises:
    UsageError: it is missing or torn, or `config.gin` is missing.
  """
  if not run.is_dir():
    raise UsageError(f"{run}: no such folder; write the workdir of a run")
  try:
    facts = json.loads((run / "run.json").read_text())
  except FileNotFoundError:
    raise UsageError(f"{run}/run.json: missing; write the workdir of a run") from None
  except (OSError, ValueError):
    raise UsageError(f"{run}/run.json: torn or unreadable, so the run's command is not known; "
                     "start it by hand with --gin_file=.../config.gin") from None
  missing = [name for name in _NEEDED if not isinstance(facts, dict) or name not in facts]
  if missing:
    raise UsageError(f"{run}/run.json: does not tell '{missing[0]}', as it is of an earlier "
                     f"version; start it by hand with --gin_file={run}/config.gin")
  if not (run / "config.gin").is_file():
    raise UsageError(f"{run}/config.gin: missing; it is written after the first step, which this "
                     "run did not reach")
  return facts


def make_command(run: pathlib.Path, facts: Mapping[str, Any], workdir: pathlib.Path,
                 variables: Mapping[str, str]) -> Command:
  """The command that makes a run again in `workdir`, under the environment `variables`.

  Raises:
    UsageError: the program is gone, or `workdir` holds another run.
  """
  config = f"--gin_file={run / 'config.gin'}"
  _check_workdir(run, workdir, config)
  folder = facts["working_directory"]
  if not os.path.isdir(folder):
    folder = os.getcwd()
  if not os.path.isfile(facts["program_file"]):
    raise UsageError(f"{run}/run.json: the program {facts['program_file']} is gone; put it back")
  words = [sys.executable, *facts["program"], config, *_other_flags(facts["argv"]),
           f"--workdir={workdir}"]
  sizes = {kind: len(tasks) for kind, tasks in _cluster(facts).items()}
  if sizes and not variables.get("TF_CONFIG"):  # A cluster's manager starts the processes itself.
    size = [f"--workers={sizes.get('worker', 0)}",
            *([f"--ps={sizes['ps']}"] if "ps" in sizes else [])]
    words = [sys.executable, "-m", "replicator.launch", *size, "--", *words]
  kept = {name: value for name, value in variables.items()
          if name not in provenance.environment(variables) and (sizes or name != "TF_CONFIG")}
  return Command(words, folder, {**kept, **facts.get("environment", {})})


def _check_workdir(run: pathlib.Path, workdir: pathlib.Path, config: str) -> None:
  if workdir == run:
    raise UsageError(f"--workdir={workdir}: is the run itself; write another folder")
  try:
    holds = json.loads((workdir / "run.json").read_text())["argv"]
  except (OSError, ValueError, KeyError, TypeError):
    return
  if config not in holds:
    raise UsageError(f"--workdir={workdir}: holds another run; write another folder")


def _other_flags(argv: Sequence[str]) -> list[str]:
  """Without those that `config.gin` and the new workdir stand for."""
  kept, words = [], iter(argv)
  for word in words:
    if word in _FROM_FILES:
      next(words, None)
    elif word.partition("=")[0] not in _FROM_FILES:
      kept.append(word)
  return kept


def _cluster(facts: Mapping[str, Any]) -> dict[str, list[str]]:
  return (facts.get("tf_config") or {}).get("cluster") or {}


def now(facts: Mapping[str, Any]) -> dict[str, Any]:
  """The same facts as `run.json` has of the program, as they are now."""
  quiet.import_tensorflow()
  code = provenance.code_of_program(facts["program_file"])
  return {"git_commit": code.commit, "diff": code.diff, "versions": provenance.versions(),
          "machine": {**provenance.machine(), "accelerators": provenance.accelerators()}}


def differences(then: Mapping[str, Any], today: Mapping[str, Any], run: pathlib.Path) -> list[str]:
  """What may make the numbers differ, a line each."""
  lines = [*_of_code(then, today, run), *_of_values("version of ", then, today, "versions"),
           *_of_values("", then, today, "machine", ("processor", "cores", "accelerators"))]
  hosts = {address.rpartition(":")[0] for tasks in _cluster(then).values() for address in tasks}
  if len(hosts) > 1:
    lines.append(f"processes: were on the hosts {', '.join(sorted(hosts))}")
  if not os.path.isdir(then["working_directory"]):
    lines.append(f"working directory: {then['working_directory']} is gone; runs in {os.getcwd()}")
  for entry in then.get("resumed", []):
    if entry.get("before"):
      lines.append(f"the run itself: until step {entry['step']} it had another "
                   f"{', '.join(name.replace('_', ' ') for name in entry['before'])}")
  return lines


def _of_code(then: Mapping[str, Any], today: Mapping[str, Any], run: pathlib.Path) -> list[str]:
  was, is_now = then.get("git_commit"), today["git_commit"]
  if was is None:
    return ["code: the run recorded no commit, so it may have changed"]
  commit = was.rstrip("+")
  diff = run / str(then.get("git_diff"))
  restore = f"git checkout {commit}" + (f" && git apply {diff}" if diff.is_file() else "")
  if is_now is None or is_now.rstrip("+") != commit:
    return [f"code: commit {_short(was)} then, {_short(is_now)} now; `{restore}` brings it back"]
  if was.endswith("+") and not diff.is_file():
    return [f"code: commit {_short(was)} with changes that were not kept"]
  if (diff.read_bytes() if was.endswith("+") else b"") != today["diff"]:
    return [f"code: other changes on top of commit {_short(commit)}; `{restore}` brings them back"]
  return []


def _short(commit: str | None) -> str:
  if commit is None:
    return "none"
  return commit[:10] + (" with changes" if commit.endswith("+") else "")


def _of_values(prefix: str, then: Mapping[str, Any], today: Mapping[str, Any], group: str,
               names: Sequence[str] | None = None) -> list[str]:
  was, is_now = then.get(group) or {}, today[group]
  return [f"{prefix}{name}: {_words(was.get(name))} then, {_words(is_now.get(name))} now"
          for name in names or sorted({**was, **is_now}) if was.get(name) != is_now.get(name)]


def _words(value: Any) -> str:
  if isinstance(value, list):
    return ", ".join(map(str, value)) or "none"
  return "unknown" if value is None else str(value)


if __name__ == "__main__":
  sys.exit(main())
