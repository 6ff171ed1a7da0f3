"""Starts a new run with the weights of a previous one, some of which stay frozen."""

import collections
import fnmatch
import hashlib
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Literal

from replicator import atomic
from replicator.configuration import differences
from replicator.console.formatting import labeled
from replicator.errors import UsageError, nearest
from replicator.step import context
from replicator.step.variables import parts_of_networks, variables_of
from replicator.strategies.replicator import Replicator
from replicator.training.checkpoints import names as naming
from replicator.training.checkpoints.matching import (
  check_frozen,
  match,
  network_of,
  uneven,
  weights_of,
)
from replicator.training.checkpoints.retention import Checkpoints
from replicator.training.checkpoints.saver import Saver
from replicator.training.checkpoints.snapshot import Snapshot, Variables
from replicator.training.checkpoints.store import steps_of
from replicator.training.workdir import reader
from replicator.training.workdir.places import folder_of, is_url

import gin
import keras
import numpy as np

_MOST_LINES = 8  # The most lines about weights not taken; `run.json` lists all.

Layers = Mapping[str, keras.layers.Layer]  # By name.

Origin = tuple[dict[str, Any] | None, list[str]]
"""The origin of a run's weights: a fact for `run.json`, and lines for the user."""


@gin.configurable(module="replicator", denylist=["run"])
class StartFrom:
  """Initial weights for a new run, taken from another run, with some layers frozen.

  A weight is taken if its shape and its path of attributes are the same in both runs; the precision
  may differ. In a list or a `keras.Sequential`, layers with the same user-given name match. Moving
  averages of an optimizer are taken with the weights; if the other run has none, they are copies of
  the weights. Statistics that normalize a network's inputs, such as those of an agent's
  `Normalizer`, are taken too, whichever networks are chosen. Nothing else is taken: optimizer
  slots, counts and the step begin as in any run. Slots that begin as copies of the weights, as in
  `ScheduleFreeAdamW`, are copies of the weights taken. A resumed run takes nothing.

  A frozen layer computes the same function throughout, bit for bit: no update changes it, its batch
  normalization uses its moving statistics, its spectral normalization keeps its vectors, and an
  agent's `Normalizer` keeps its statistics. Freezing the lower layers of a discriminator is FreezeD
  (Mo et al. 2020, arXiv:2002.10964).

  Args:
    run: the workdir of the other run, or its URL.
    step: the step of the checkpoint to take; 'best' for the best by the other run's
      `Checkpoints.keep_best`; None for the newest good one.
    networks: the networks to take, by their attributes in the step, such as `['generator']`; None
      for all that both runs have. `{'teacher': 'generator', 'student': 'generator'}` maps networks
      of this run to networks of the other run.
    frozen: what to freeze in each network: a number of its first layers or blocks,
      `{'discriminator': 2}`; or names of layers, where `*` matches any characters,
      `{'discriminator': ['blocks/0', 'embedding'], 'encoder': ['*']}`.
    averaged: whether to take the other run's moving averages as weights, where it has them.
  """

  def __init__(self, run: str, step: int | Literal["best"] | None = None,
               networks: Sequence[str] | Mapping[str, str] | None = None,
               frozen: Mapping[str, int | Sequence[str]] | None = None,
               averaged: bool = False):
    self._run = run
    self._step = step
    self._networks = networks
    self._averaged = averaged
    self._frozen = frozen or {}

  def begin(self, step: Any, replicator: Replicator, workdir: pathlib.Path) -> Origin:
    """Freezes the chosen layers and, if the run in `workdir` is new, takes the weights.

    All workers must call it together.

    Raises:
      UsageError: there is no such run, checkpoint, network or layer; nothing in the checkpoint
        fits the step, or something that should be frozen does not fit.
    """
    networks = naming.networks_of(step)
    frozen = self._freeze(networks)
    for part in parts_of_networks(step).values():
      part.frozen = bool(frozen)
    if context.run.is_loading:  # The step gets a checkpoint of its own run; the other may be gone.
      return None, []
    if steps_of(workdir / "checkpoints"):
      return self._resumed(workdir)
    self._folder = folder_of(self._run, "newest" if self._step is None else "all")
    if not steps_of(self._folder / "checkpoints"):
      raise self._error("has no checkpoint; use the workdir of a run that has saved one")
    return self._take(step, replicator, networks, frozen)

  def _error(self, what: str) -> UsageError:
    return UsageError(f"train.start_from = '{self._run}': {what}")

  @property
  def _place(self) -> str:
    """The run as `run.json` names it."""
    return self._run if is_url(self._run) else str(folder_of(self._run).resolve())

  def _resumed(self, workdir: pathlib.Path) -> Origin:
    facts = reader.read_facts(workdir).get("start_from")
    if facts and facts["run"] == self._place:
      return facts, []
    began = f"started from {facts['run']}" if facts else "started without it"
    return facts, [f"warning: train.start_from = '{self._run}': nothing is taken, because this run "
                   f"resumes, and {began}; use another --workdir for a new run"]

  def _freeze(self, networks: Layers) -> Layers:
    for path in self._frozen:
      if path not in networks:
        raise UsageError(f"StartFrom.frozen: the step has no network '{path}'."
                         f"{nearest(path, networks)} Its networks are {_listed(networks)}")
    frozen = {naming.joined(path, name): layer for path, which in self._frozen.items()
              for name, layer in _chosen(path, networks[path], which).items()}
    for layer in frozen.values():
      layer.trainable = False
    return frozen

  def _take(self, step: Any, replicator: Replicator, networks: Layers, frozen: Layers) -> Origin:
    folder, facts, values = self._read(step, replicator)
    variables, here = variables_of(step), naming.names_of(step)
    saved, there = Snapshot(values, facts["by_replica"]), facts["names"]
    parts = parts_of_networks(step)
    others = set(map(network_of, weights_of(there).values()))
    wanted = self._wanted(networks.keys(), others - parts.keys())
    taken, left = match(wanted, variables, here, saved, there, self._averaged)
    if not taken:
      why = "; ".join(f"{name} {why}" for name, why in list(left.items())[:3])
      raise self._error("none of its weights fit the networks of this run: "
                        f"{why or 'StartFrom.networks is empty'}")
    whole = []
    for name, part in parts.items():  # As a whole: a mean without its variance is meaningless.
      of_part, left_of_part = match({name: name}, variables, here, saved, there)
      taken |= {} if left_of_part else of_part
      left |= left_of_part
      whole += [] if left_of_part else [part]
    check_frozen(frozen, here, taken, left)
    Variables(variables, replicator).put(Snapshot(
        {path: values[other].astype(variables[path].dtype.as_numpy_dtype)
         for path, other in taken.items()},
        [path for path, other in taken.items() if other in saved.by_replica]))
    for part in whole:
      getattr(part, "check_taken", lambda: None)()
    weights = weights_of(here).values()
    of_each = collections.Counter(map(network_of, weights))
    taken_of_each = collections.Counter(network_of(path) for path in weights if path in taken)
    counts = {network: (count, of_each[network]) for network, count in taken_of_each.items()}
    left |= dict.fromkeys(naming.others_of(step), "is not in a network")
    return {
        "run": self._place, "step": facts["step"],
        "checkpoint_sha256": hashlib.sha256((folder / atomic.MANIFEST).read_bytes()).hexdigest(),
        "taken": {network: taken for network, (taken, _) in counts.items()},
        "not_taken": left, "frozen": list(frozen),
    }, _lines(f"{self._run}, step {facts['step']}", counts, left, frozen) + uneven(
        wanted, here, there)

  def _wanted(self, here: Set[str], there: Set[str]) -> dict[str, str]:
    """Returns the network there to take for each network here, out of all networks in both runs."""
    if self._networks is None:
      return {name: name for name in [*here, *sorted(there - here)]}
    wanted = (dict(self._networks) if isinstance(self._networks, Mapping)
              else {name: name for name in self._networks})
    for name, other in wanted.items():
      for each, known, whose in ([(name, here & there, "both runs")] if name == other else
                                 [(name, here, "this run"), (other, there, "the other run")]):
        if each not in known:
          raise UsageError(f"StartFrom.networks: '{each}' is not a network of {whose}."
                           f"{nearest(each, known)} {whose.capitalize().removesuffix(' runs')} "
                           f"{'have' if name == other else 'has'} {_listed(known)}")
    return wanted

  def _read(self, step: Any, replicator: Replicator
            ) -> tuple[pathlib.Path, dict, dict[str, np.ndarray]]:
    """Reads the folder, the facts and the values of the other run's checkpoint."""
    settings = _settings_of_best(self._folder) if self._step == "best" else {}
    source = Saver(self._folder / "checkpoints", step, retention=Checkpoints(**settings))
    found = source.read(self._step, named=True)
    agreed = int(replicator.by_worker(found[1]["step"])[0])
    # The other run may have saved a newer one in the meantime.
    return found if found[1]["step"] == agreed else source.read(agreed, named=True)


def _settings_of_best(run: pathlib.Path) -> dict[str, Any]:
  """Reads the settings of a run that determine its best checkpoint."""
  try:
    written = differences.values((run / "config.gin").read_text())
  except (OSError, ValueError) as error:
    raise UsageError(f"StartFrom.step = 'best': {run}/config.gin, which names the scalar, cannot "
                     f"be read ({error}); give the number of a step") from error
  return {name: written[f"Checkpoints.{name}"]
          for name in ("keep_best", "best_is") if f"Checkpoints.{name}" in written}


def _chosen(path: str, network: keras.layers.Layer, which: int | Sequence[str]) -> Layers:
  """Returns the layers of a network to freeze, by name, without those inside them."""
  blocks = naming.blocks_in(network)
  if isinstance(which, int):
    if not 0 <= which <= len(blocks):
      raise UsageError(f"StartFrom.frozen: {which} layers of '{path}', which has {len(blocks)}: "
                       f"{', '.join(blocks)}")
    return {name: blocks[name] for name in list(blocks)[:which]}
  layers = {name: layer for name, layer in {"": network, **naming.layers_in(network)}.items()
            if layer.variables}
  found: dict[str, keras.layers.Layer] = {}
  for pattern in which:
    names = fnmatch.filter(layers, pattern)
    if not names:
      raise UsageError(f"StartFrom.frozen: '{path}' has no layer '{pattern}'."
                       f"{nearest(pattern, layers)} Its layers are {', '.join(blocks)}, and the "
                       "layers inside them")
    found.update({name: layers[name] for name in names})
  return {name: layer for name, layer in found.items()
          if not any(name != outer and f"{name}/".startswith(f"{outer}/" if outer else "")
                     for outer in found)}


def _listed(names: Iterable[str]) -> str:
  return ", ".join(sorted(names)) or "none"


def _lines(origin: str, counts: Mapping[str, tuple[int, int]], left: Mapping[str, str],
           frozen: Collection[str]) -> list[str]:
  took = ", ".join(f"{network} ({taken if taken == total else f'{taken} of {total}'} variables)"
                   for network, (taken, total) in counts.items())
  lines = [labeled("start from", f"{origin}: {took}")]
  lines += [labeled("not taken", f"{name} {why}") for name, why in left.items()]
  if len(left) > _MOST_LINES:
    lines[_MOST_LINES + 1:] = [labeled("not taken", f"and {len(left) - _MOST_LINES} more, listed "
                                       "in run.json")]
  return lines + ([labeled("frozen", ", ".join(frozen))] if frozen else [])
