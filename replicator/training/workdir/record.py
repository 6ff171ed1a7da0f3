"""The record of a run: `run.json` (its command, code and machine) and `config.gin`."""

import ast
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

# Changes that do not affect how a step is built or what it computes.
_WITHOUT_EFFECT = re.compile(
    r"changed: (train\.(steps|\w+_every|callbacks|check_first_step)|Checkpoints\.)")
# Facts that can affect how a step is built.
_PARTS = ("strategy", "num_replicas", "num_workers", "global_batch_size", "seed", "precision",
          "jit_compile")


_HYPERPARAMETERS = {
    "train.seed": "seed", "train.steps": "steps", "train.global_batch_size": "global_batch_size",
    "train.precision": "precision", "Replicator.strategy": "strategy"}


class Record:
  """The writer of `run.json` and `config.gin` in an existing workdir.

  `facts` go into `run.json`, along with the command, the code, the versions and the machine. The
  run resumes from `first_step`.

  Attributes:
    facts: the content of `run.json`.
    changes: after `config` was called, the lines `changed: ...` that may change what a resumed run
      computes.
  """

  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int = 0):
    self.workdir = workdir
    self.changes: list[str] = []
    self._resumed = first_step > 0
    self.facts = self._all_facts(facts, first_step)
    self._write_facts()

  def note(self, name: str, fact: str | list) -> bool:
    """Adds a fact to `run.json`; returns whether it is new or has changed."""
    if self.facts.get(name) == fact:
      return False
    self.facts[name] = fact
    self._write_facts()
    return True

  def hyperparameters(self) -> dict[str, bool | float | str]:
    """Returns the basic settings of every run, and after `config`, all values that were set."""
    found = {name: _plain(text) for name, text, _ in self.facts.get("settings", [])}
    return {**found, **{name: self.facts[fact] for name, fact in _HYPERPARAMETERS.items()
                        if fact in self.facts}}

  def config(self, evaluated: bool = True) -> list[str]:
    """Writes `config.gin` after the first step; see `operative.after_first_step`.

    Returns messages for the user, including changes of the code since a resumed run started.
    """
    found = {each.key: each for each in statements.last_read() if not each.is_record}
    # The name, value and place of the last statement that set each value.
    self.note("settings", [[each.name, literal(each.value), each.where] for each in found.values()])
    lines = operative.after_first_step(self.workdir / "config.gin", self._resumed, evaluated)
    if not self._resumed:
      return lines
    lines += self._code_changes()
    self.changes = [line for line in lines
                    if line.startswith("changed: ") and not _WITHOUT_EFFECT.match(line)]
    return lines + self._state_changes()

  def _state_changes(self) -> list[str]:
    """Returns a message if the step's constructor made different Python values than before."""
    before = self.facts["resumed"][-1]["before"]
    names = _others(before.get("python_state", {}), self.facts.get("python_state", {}))
    if not names:
      return []
    line = f"the step's {initial_state.named(names)} is not the same as before the resume"
    if self.changes or before.keys() & set(_PARTS):
      return [f"note: {line}, perhaps because of these changes"]
    return [f"warning: {line}, and no change explains it; {initial_state.REMEDY}"]

  def _code_changes(self) -> list[str]:
    """Returns messages about changes of the code, which may change the numbers."""
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
    """Returns the current facts, with the old values of changed ones under "resumed".

    A run with no steps left keeps its facts, as it keeps its `config.gin`.
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

    If an earlier start left different changes, adds the number `resumed` to the file name.
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


def _plain(text: str) -> bool | float | str:
  """Parses a gin text that is a number, a bool or a string; returns any other text unchanged."""
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
  return value if isinstance(value, bool | int | float | str) else text


def _others(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
  """Returns the names in both mappings whose digests differ."""
  return [name for name, digest in now.items() if before.get(name, digest) != digest]
