"""Repeats a run, from the files of its workdir alone: `replicator rerun RUN`.

    replicator rerun RUN [--workdir=DIR] [--exact] [--yes]

The new run takes the command, the environment and the number of processes from RUN's `run.json`,
and the configuration from RUN's `config.gin`, because the gin files may have changed or be gone.
It runs the current code; `run.json` has the commit of RUN, and `changes.diff` the changes on top of
that commit. It prints differences in the code, the versions or the machine before the run starts;
with `--exact`, the run starts only if there are none. The default workdir of the new run is
`RUN-rerun`, next to the old one. The same command resumes it.

The command comes from `run.json`, which anyone may have written. So it is shown, and starts only if
you answer yes; `--yes` answers in advance. The environment is the current one, except that the
variables listed in `replicator.training.workdir.provenance`, which may change numbers, are RUN's.

Exit status: that of the run; 1 if `--exact` finds a difference, or the answer is no; 2 for a bad
command line, or for files that are missing or corrupt.
"""

import argparse
import os
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.console.command import Parser, status_of
from replicator.console.versions import versions
from replicator.errors import RunFailed, UsageError
from replicator.training.workdir import provenance, reader
from replicator.training.workdir.places import folder_of, is_url


def main(argv: Sequence[str] | None = None) -> int:
  """Replaces this process with the new run; returns an exit status only if it does not start."""
  return status_of(_rerun, argv, describe=None)


def _rerun(words: list[str]) -> int:
  parser = Parser(description="Repeats a run from the files in its workdir.")
  parser.add_argument("run", metavar="RUN", type=os.path.expanduser,
                      help="the workdir of a run, a folder or a URL")
  parser.add_argument("--workdir", metavar="DIR", type=os.path.expanduser,
                      help="the workdir of the new run; by default RUN-rerun")
  parser.add_argument("--exact", action="store_true",
                      help="do not start if the code, the versions or the machine differ")
  parser.add_argument("--yes", action="store_true",
                      help="start the command without asking, as a script must")
  flags = parser.parse_args(words)
  run = folder_of(flags.run).resolve()
  facts = read_facts(run)
  workdir = flags.workdir or f"{flags.run.rstrip('/') if is_url(flags.run) else run}-rerun"
  workdir = workdir if is_url(workdir) else str(pathlib.Path(workdir).resolve())
  command, variables = make_command(run, facts, workdir), make_environment(facts)
  shown = _shown(command, facts["working_directory"], variables)
  if not flags.yes and not sys.stdin.isatty():
    raise UsageError(f"{run}/run.json: its command was not started: {shown}; read it, then "
                     "add --yes to start it")
  changed = differences(facts, now(facts), run)
  for line in changed:
    print(f"differs now: {line}")
  if changed and flags.exact:
    raise RunFailed("--exact: not started, because the numbers may differ")
  if not changed:
    print("everything that the run recorded is unchanged")
  print(f"running again in {workdir}: {shown}", flush=True)
  if not flags.yes and not _agrees():
    raise RunFailed("not started, because the answer was not yes")
  os.chdir(facts["working_directory"])
  os.execve(command[0], command, variables)


def _agrees() -> bool:
  try:
    return input("Start this command? [y/N] ").strip().lower() in ("y", "yes")
  except EOFError:
    return False


def read_facts(run: pathlib.Path, remedy: str = "") -> dict[str, Any]:
  """Reads `run.json`.

  Raises a UsageError if it is missing, corrupt or from an earlier version, or if `config.gin` is
  missing. `remedy` is advice for such runs; by default, to start the run by hand.
  """
  if not (run / "run.json").is_file():
    raise UsageError(f"{run}/run.json: missing; give the workdir of a run")
  facts = reader.read_facts(run)
  for name in ("program", "program_file", "argv", "working_directory"):
    if name not in facts:
      remedy = remedy or f"start it by hand with --gin_file={run}/config.gin"
      raise UsageError(f"{run}/run.json: has no '{name}', because it is corrupt or was written by "
                       f"an earlier version; {remedy}")
  if not (run / "config.gin").is_file():
    raise UsageError(f"{run}/config.gin: missing; it is written after the first step, which this "
                     "run did not reach")
  return facts


def make_command(run: pathlib.Path, facts: Mapping[str, Any], workdir: str | os.PathLike
                 ) -> list[str]:
  """Returns the words of the command that repeats a run in `workdir`, a folder or a URL.

  Raises a UsageError if the program or its folder is missing, or `workdir` has a different run.
  """
  config = f"--gin_file={run / 'config.gin'}"
  if facts["program_file"] is None:
    raise UsageError(f"{run}: was trained in a notebook, so it has no command; rerun its cell")
  if os.fspath(workdir) == str(run):
    raise UsageError(f"--workdir={workdir}: is the folder of the run itself; choose another")
  earlier = reader.read_facts(folder_of(workdir, may_be_new=True))
  if config not in earlier.get("argv", [config]):
    raise UsageError(f"--workdir={workdir}: contains another run; choose another folder")
  for kind, name in (("program", "program_file"), ("folder", "working_directory")):
    if not os.path.exists(facts[name]):
      raise UsageError(f"{run}/run.json: the {kind} {facts[name]} is missing; restore it")
  words = [sys.executable, *facts["program"], config, *_other_flags(facts["argv"]),
           f"--workdir={workdir}"]
  sizes = {kind: len(tasks) for kind, tasks in _cluster(facts).items()}
  if sizes and not os.environ.get("TF_CONFIG"):  # With it, a cluster manager starts the processes.
    # Without parameter servers, a chief is one of the workers.
    chiefs = 0 if "ps" in sizes else sizes.get("chief", 0)
    size = [f"--workers={sizes.get('worker', 0) + chiefs}",
            *([f"--ps={sizes['ps']}"] if "ps" in sizes else [])]
    words = [sys.executable, "-m", "replicator", "launch", *size, "--", *words]
  return words


def make_environment(facts: Mapping[str, Any]) -> dict[str, str]:
  """Returns this process's environment, with the run's values of variables that affect numbers."""
  replaced = {*provenance.environment(os.environ), *([] if _cluster(facts) else ["TF_CONFIG"])}
  kept = {name: value for name, value in os.environ.items() if name not in replaced}
  return {**kept, **provenance.environment(facts.get("environment", {}))}


def _shown(words: Sequence[str], folder: str, variables: Mapping[str, str]) -> str:
  """Formats the command as typed in a shell, with the variables it sets, and nothing hidden."""
  assigned = [f"{name}={shlex.quote(value)}" for name, value in variables.items()
              if os.environ.get(name) != value]
  text = " ".join([f"cd {shlex.quote(folder)} &&", *assigned, shlex.join(words)])
  # A terminal would interpret control characters, which could hide part of the command.
  return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _other_flags(argv: Sequence[str]) -> list[str]:
  """Returns the flags that a rerun keeps; `config.gin` and the new workdir replace the others."""
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  for flag in ("--gin_file", "--gin_param", "--workdir"):
    parser.add_argument(flag, action="append")
  # These applied to the old workdir.
  parser.add_argument("--from_step")
  parser.add_argument("--take_over", action="store_true")
  return parser.parse_known_args(argv)[1]


def _cluster(facts: Mapping[str, Any]) -> dict[str, list[str]]:
  return (facts.get("tf_config") or {}).get("cluster") or {}


def now(facts: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the current values of the facts that `differences` compares."""
  code = provenance.code_of_program(facts["program_file"])
  return {"git_commit": code.commit, "diff": code.diff, "versions": versions(),
          "machine": provenance.machine()}


def differences(then: Mapping[str, Any], today: Mapping[str, Any], run: pathlib.Path) -> list[str]:
  """Returns a message for each difference that may change the numbers of the run."""
  lines = _of_code(then, today, run)
  was, is_now = _versions_and_machine(then), _versions_and_machine(today)
  lines += [f"{name}: {was.get(name) or 'unknown'} then, {is_now.get(name) or 'unknown'} now"
            for name in sorted({**was, **is_now}) if was.get(name) != is_now.get(name)]
  hosts = {address.rpartition(":")[0] for tasks in _cluster(then).values() for address in tasks}
  if len(hosts) > 1:
    lines.append(f"processes: ran on the hosts {', '.join(sorted(hosts))}")
  variables = then.get("environment", {})
  if unknown := sorted(variables.keys() - provenance.environment(variables).keys()):
    lines.append(f"environment: {', '.join(unknown)} of run.json is ignored")
  for entry in then.get("resumed", []):
    if entry.get("before"):
      lines.append(f"the run itself: resumed at step {entry['step']} with changes to "
                   f"{', '.join(name.replace('_', ' ') for name in entry['before'])}")
  return lines


def _of_code(then: Mapping[str, Any], today: Mapping[str, Any], run: pathlib.Path) -> list[str]:
  was, is_now = then.get("git_commit"), today["git_commit"] or "none"
  if was is None:
    return ["code: the run recorded no commit, so the code may have changed"]
  commit, patch = was.rstrip("+"), run / str(then.get("git_diff"))
  changes = patch.read_bytes() if patch.is_file() else b""
  if was.endswith("+") and not changes:
    return [f"code: commit {commit} with unsaved changes; {is_now} now"]
  if (was, changes) == (is_now, today["diff"]):
    return []
  restore = f"git checkout {commit}" + (f" && git apply {patch}" if changes else "")
  others = ", with different changes" if was == is_now else ""
  return [f"code: commit {was} then, {is_now} now{others}; `{restore}` restores it"]


def _versions_and_machine(facts: Mapping[str, Any]) -> dict[str, str]:
  """Returns the versions and the machine as text to compare, without the host name."""
  versions, machine = facts.get("versions") or {}, facts.get("machine") or {}
  return {**{f"version of {name}": str(value) for name, value in versions.items()},
          **{name: str(machine[name]) for name in ("processor", "cores", "accelerators")
             if name in machine}}


if __name__ == "__main__":
  sys.exit(main())
