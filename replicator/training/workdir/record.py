"""The record of a run: `run.json`, with its command, code and machine, and `config.gin`."""

import datetime
import json
import math
import pathlib
import re
from collections.abc import Mapping

from replicator import atomic
from replicator.configuration import operative, statements
from replicator.configuration.literals import literal
from replicator.training import initial_state
from replicator.training.workdir import provenance, reader

import tensorflow as tf

_CHANGED = re.compile("changed: ")
# Facts that do not say what a step is made of.
_WITHOUT_EFFECT = {"python_state", "code", "command", "environment", "machine", "tf_config",
                   "working_directory"}


class Record:
  """Writes `run.json` and `config.gin`, into a workdir that is there.

  `facts` are for `run.json`, besides the command, the code, the versions and the machine. The run
  resumes from `first_step`.
  """

  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int = 0):
    self.workdir = workdir
    self._resumed = first_step > 0
    self.facts = self._all_facts(facts, first_step)  # The content of `run.json`.
    self._write_facts()

  def note(self, name: str, fact: str | list) -> bool:
    """Adds a fact to `run.json`; returns whether the fact is new."""
    if self.facts.get(name) == fact:
      return False
    self.facts[name] = fact
    self._write_facts()
    return True

  def config(self, evaluated: bool = True) -> list[str]:
    """Writes `config.gin` after the first step; see `operative.after_first_step`.

    Returns lines for the user, also on code that a resumed run has changed.
    """
    found = {each.key: each for each in statements.last_read() if not each.is_record}
    # The name, the value and the place of each statement that set a value, the last one of each.
    self.note("settings", [[each.name, literal(each.value), each.where] for each in found.values()])
    lines = operative.after_first_step(self.workdir / "config.gin", self._resumed, evaluated)
    if not self._resumed:
      return lines
    lines += self._code_changes()
    return lines + ([] if any(map(_CHANGED.match, lines)) else self._state_changes())

  def _state_changes(self) -> list[str]:
    """A line if the step's constructor made other Python values, though nothing has changed."""
    before = self.facts["resumed"][-1]["before"]
    names = _others(before.get("python_state", {}), self.facts.get("python_state", {}))
    if not names or before.keys() - _WITHOUT_EFFECT:
      return []
    return [f"warning: the step's {initial_state.named(names)} is not what it was before the run "
            f"was resumed, though no setting is another; {initial_state.REMEDY}"]

  def _code_changes(self) -> list[str]:
    """Lines on other code than that of the run so far, which may compute other numbers."""
    before, now = self.facts["resumed"][-1]["before"], self.facts
    pairs = {name: (before[name], now[name]) for name in ("git_commit", "replicator_commit")
             if name in before}
    for name, version in before.get("versions", {}).items():
      pairs[f"version of {name}"] = (version, now["versions"].get(name))
    lines = [f"changed: {name} = {new}, was {old}" for name, (old, new) in pairs.items()
             if old != new]
    files = _others(before.get("code", {}), now["code"])
    return lines + ([f"changed: the code of {', '.join(files)}"] if files else [])

  def _all_facts(self, facts: dict, first_step: int) -> dict:
    """The facts as they are now; those that a resumed run changes stay under "resumed".

    A run that has no step left keeps its facts, as it keeps its `config.gin`.
    """
    earlier = reader.read_facts(self.workdir)
    earlier.pop("ended", None)
    resumed = earlier.pop("resumed", [])
    if earlier and first_step >= facts.get("steps", math.inf):  # Nothing will change.
      return {**earlier, "resumed": resumed}
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    now = {**provenance.of_this_process(), **facts}
    diff = provenance.code_of_program(now["program_file"]).diff
    now["git_diff"] = self._keep(diff, len(resumed) + 1 if first_step else 0) or now["git_diff"]
    now["machine"]["devices"] = [d.name for d in tf.config.list_logical_devices()]
    if not earlier:
      again = [{"step": first_step, "started": started, "before": {}}] if first_step else []
      return {"started": started, **now, "resumed": again}
    before = {name: earlier[name] for name in now if earlier.get(name, now[name]) != now[name]}
    resumed = [*resumed, {"step": first_step, "started": started, "before": before}]
    notes = earlier if first_step else {"started": started}
    return {**notes, **now, "resumed": resumed}

  def _keep(self, diff: bytes, resumed: int) -> str | None:
    """Writes the uncommitted changes of the code, if any; returns the name of the file.

    The `resumed`-th start keeps other changes of an earlier one.
    """
    if not diff:
      return None
    path = self.workdir / provenance.DIFF
    if resumed and path.exists() and path.read_bytes() != diff:
      path = path.with_stem(f"{path.stem}-{resumed}")
    atomic.write_whole(path, diff)
    return path.name

  def _write_facts(self) -> None:
    atomic.write_whole(self.workdir / "run.json", json.dumps(self.facts, indent=2) + "\n")


def _others(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
  """The names whose digest is another, of those that have one in both."""
  return [name for name, digest in now.items() if before.get(name, digest) != digest]
