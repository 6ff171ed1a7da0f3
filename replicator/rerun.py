"""Runs a run again, from the files of its workdir alone: `python -m replicator.rerun RUN`.

    python -m replicator.rerun RUN [--workdir=DIR] [--exact] [--yes]

The new run takes the command, the environment and the number of processes from RUN's `run.json`,
and the configuration from RUN's `config.gin`, because the gin files may have changed or be gone.
It runs the code that is there now; `run.json` has the commit of RUN, and `changes.diff` the changes
on top of that commit. Differences in the code, the versions or the machine are printed before the
run starts; with `--exact`, it starts only if there are none. The default workdir of the new run is
`RUN-rerun`, beside the old one. The same command resumes it.

The command is that of whoever wrote `run.json`, so it is shown, and starts only if the answer is
yes; `--yes` answers in advance. The environment is today's but for the variables that may change
numbers: `replicator.workdir.provenance` names them, and no other variable is taken over.

Exit status: that of the run; 1 if `--exact` finds a difference, or the answer is no; 2 for a bad
command line, or for files that are missing or corrupt.
"""

import argparse
import dataclasses
import os
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.console import quiet
from replicator.console.command import status_of
from replicator.console.flags import Parser
from replicator.errors import RunFailed, UsageError
from replicator.workdir import provenance, reader

_NEEDED = ("program", "program_file", "argv", "working_directory")


@dataclasses.dataclass(frozen=True)
class Command:
  """A command that starts a run: its words, its working directory, all its variables."""

  words: list[str]
  folder: str
  environment: dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
  """Replaces this process by the new run; returns an exit status only if it does not start."""
  return status_of(lambda words: _rerun(_parse(words)), argv, describe=None)


def _rerun(flags: argparse.Namespace) -> int:
  run = pathlib.Path(flags.run).resolve()
  facts = read_facts(run)
  workdir = pathlib.Path(flags.workdir or f"{run}-rerun").resolve()
  command = make_command(run, facts, workdir, os.environ)
  shown = _shown(command, os.environ)
  if not flags.yes and not sys.stdin.isatty():
    raise UsageError(f"{run}/run.json: its command is not started unseen: {shown}; read it, and "
                     "write --yes to start it")
  changed = differences(facts, now(facts), run)
  for line in changed:
    print(f"differs now: {line}")
  if changed and flags.exact:
    print("error: --exact: not started, because the numbers may differ", file=sys.stderr)
    return 1
  if not changed:
    print("everything that the run recorded is as it was")
  print(f"running again in {workdir}: {shown}", flush=True)
  if not flags.yes and input("Start this command? [y/N] ").strip().lower() not in ("y", "yes"):
    raise RunFailed("not started, because the answer was not yes")
  os.chdir(command.folder)
  os.execve(command.words[0], command.words, command.environment)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = Parser(description="Runs a run again, from the files of its workdir.")
  parser.add_argument("run", metavar="RUN", type=os.path.expanduser, help="the workdir of a run")
  parser.add_argument("--workdir", metavar="DIR", type=os.path.expanduser,
                      help="the workdir of the new run; by default RUN-rerun")
  parser.add_argument("--exact", action="store_true",
                      help="do not start if the code, the versions or the machine differ")
  parser.add_argument("--yes", action="store_true",
                      help="start the command without a question, as a script must")
  return parser.parse_args(argv)


def read_facts(run: pathlib.Path, remedy: str = "") -> dict[str, Any]:
  """The content of `run.json`.

  Raises a UsageError if it is missing, corrupt or from an earlier version, or `config.gin` is
  missing. `remedy` is what to do with such a run; by default, to start it by hand.
  """
  if not run.is_dir():
    raise UsageError(f"{run}: no such folder; write the workdir of a run")
  if not (run / "run.json").is_file():
    raise UsageError(f"{run}/run.json: missing; write the workdir of a run")
  facts = reader.read_facts(run)
  by_hand = remedy or f"start it by hand with --gin_file={run}/config.gin"
  if not facts:
    raise UsageError(f"{run}/run.json: corrupt, so the command of the run is not known; {by_hand}")
  missing = [name for name in _NEEDED if name not in facts]
  if missing:
    raise UsageError(f"{run}/run.json: has no '{missing[0]}', because an earlier version wrote it; "
                     f"{by_hand}")
  if not (run / "config.gin").is_file():
    raise UsageError(f"{run}/config.gin: missing; it is written after the first step, which this "
                     "run did not reach")
  return facts


def make_command(run: pathlib.Path, facts: Mapping[str, Any], workdir: pathlib.Path,
                 variables: Mapping[str, str]) -> Command:
  """The command that repeats a run in `workdir`, under the environment `variables`.

  Raises a UsageError if the program is missing, or `workdir` holds another run.
  """
  config = f"--gin_file={run / 'config.gin'}"
  if workdir == run:
    raise UsageError(f"--workdir={workdir}: is the folder of the run itself; write another")
  if config not in reader.read_facts(workdir).get("argv", [config]):
    raise UsageError(f"--workdir={workdir}: holds another run; write another folder")
  folder = facts["working_directory"]
  if not os.path.isdir(folder):
    folder = os.getcwd()
  if not os.path.isfile(facts["program_file"]):
    raise UsageError(f"{run}/run.json: the program {facts['program_file']} is missing; put it back")
  words = [sys.executable, *facts["program"], config, *_other_flags(facts["argv"]),
           f"--workdir={workdir}"]
  sizes = {kind: len(tasks) for kind, tasks in _cluster(facts).items()}
  if sizes and not variables.get("TF_CONFIG"):  # Else a cluster manager starts the processes.
    # Without parameter servers, a chief is one of the workers.
    chiefs = 0 if "ps" in sizes else sizes.get("chief", 0)
    size = [f"--workers={sizes.get('worker', 0) + chiefs}",
            *([f"--ps={sizes['ps']}"] if "ps" in sizes else [])]
    words = [sys.executable, "-m", "replicator.launch", *size, "--", *words]
  kept = {name: value for name, value in variables.items()
          if name not in provenance.environment(variables) and (sizes or name != "TF_CONFIG")}
  return Command(words, folder, {**kept, **provenance.environment(_variables(facts))})


def _variables(facts: Mapping[str, Any]) -> dict[str, str]:
  return {name: str(value) for name, value in facts.get("environment", {}).items()}


def _shown(command: Command, variables: Mapping[str, str]) -> str:
  """The command as typed in a shell, with the variables that it sets, and nothing hidden."""
  assigned = [f"{name}={shlex.quote(value)}" for name, value in command.environment.items()
             if variables.get(name) != value]
  text = " ".join([f"cd {shlex.quote(command.folder)} &&", *assigned, shlex.join(command.words)])
  # A terminal would obey control characters, which could hide a part.
  return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _other_flags(argv: Sequence[str]) -> list[str]:
  """The flags that a rerun keeps: `config.gin` and the new workdir replace the others."""
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  for flag in ("--gin_file", "--gin_param", "--workdir"):
    parser.add_argument(flag, action="append")
  return parser.parse_known_args(argv)[1]


def _cluster(facts: Mapping[str, Any]) -> dict[str, list[str]]:
  return (facts.get("tf_config") or {}).get("cluster") or {}


def now(facts: Mapping[str, Any]) -> dict[str, Any]:
  """The current values of the facts of `run.json` that `differences` compares."""
  quiet.import_tensorflow()
  code = provenance.code_of_program(facts["program_file"])
  return {"git_commit": code.commit, "diff": code.diff, "versions": provenance.versions(),
          "machine": {**provenance.machine(), "accelerators": provenance.accelerators()}}


def differences(then: Mapping[str, Any], today: Mapping[str, Any], run: pathlib.Path) -> list[str]:
  """A line for each difference that may change the numbers of the run."""
  lines = [*_of_code(then, today, run), *_of_values("version of ", then, today, "versions"),
           *_of_values("", then, today, "machine", ("processor", "cores", "accelerators"))]
  hosts = {address.rpartition(":")[0] for tasks in _cluster(then).values() for address in tasks}
  if len(hosts) > 1:
    lines.append(f"processes: ran on the hosts {', '.join(sorted(hosts))}")
  folder = then["working_directory"]
  if not os.path.isdir(folder):
    lines.append(f"working directory: {folder} is missing; runs in {os.getcwd()}")
  variables = _variables(then)
  if unknown := sorted(variables.keys() - provenance.environment(variables).keys()):
    lines.append(f"environment: {', '.join(unknown)} of run.json is not taken over")
  for entry in then.get("resumed", []):
    if entry.get("before"):
      lines.append(f"the run itself: resumed at step {entry['step']} with changes of "
                   f"{', '.join(name.replace('_', ' ') for name in entry['before'])}")
  return lines


def _of_code(then: Mapping[str, Any], today: Mapping[str, Any], run: pathlib.Path) -> list[str]:
  was, is_now = then.get("git_commit"), today["git_commit"]
  if was is None:
    return ["code: the run recorded no commit, so the code may have changed"]
  commit = was.rstrip("+")
  diff = run / str(then.get("git_diff"))
  restore = f"git checkout {commit}" + (f" && git apply {diff}" if diff.is_file() else "")
  if is_now is None or is_now.rstrip("+") != commit:
    return [f"code: commit {_short(was)} then, {_short(is_now)} now; `{restore}` restores it"]
  if was.endswith("+") and not diff.is_file():
    return [f"code: commit {_short(was)} with changes that were not saved"]
  if (diff.read_bytes() if was.endswith("+") else b"") != today["diff"]:
    return [f"code: other changes on top of commit {_short(commit)}; `{restore}` restores them"]
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
