"""The first lines of a run: its devices, strategy, data and networks."""

import collections
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from replicator.console.formatting import labeled

_NVIDIA = pathlib.Path("/proc/driver/nvidia/gpus")  # The driver's list: a folder for each GPU.


def lines(facts: Mapping[str, Any], data: str, networks: Mapping[str, int]) -> Iterator[str]:
  """Yields one line per subject.

  The lines describe the `facts` of `run.json`, the source of the batches (`data`), and the number
  of trained parameters of each network.
  """
  yield labeled("devices", _devices(facts["machine"]))
  replicas = f"{facts['num_replicas']} replica{'s' if facts['num_replicas'] != 1 else ''}"
  workers = f", {facts['num_workers']} workers" if facts["num_workers"] > 1 else ""
  xla = ", XLA" if facts.get("jit_compile") else ""
  yield labeled("strategy", f"{facts['strategy']}, {replicas}{workers}, {facts['precision']}{xla}, "
                f"seed {facts['seed']}")
  batches = f"{facts['batches']} batches of" if facts.get("batches", 1) > 1 else "batches of"
  a_step = " in a step" if facts.get("batches", 1) > 1 else ""
  yield labeled("data", f"{data}, {batches} {facts['global_batch_size']}{a_step}")
  if networks:
    counts = ", ".join(f"{name} {count:,}" for name, count in networks.items())
    yield labeled("networks", f"{counts} parameters")


def _devices(machine: Mapping[str, Any]) -> str:
  if machine["accelerators"]:
    models = collections.Counter(machine["accelerators"])
    return ", ".join(f"{count} x {model}" for model, count in models.items())
  cores, parts = machine["cores"], len(machine["devices"])
  text = f"CPU, {cores} core{'s' if cores != 1 else ''}"
  text += f", as {parts} devices" if parts > 1 else ""
  if unused := gpus():
    text += (f". The GPU ({unused[0]}) is not used: TensorFlow was installed without its CUDA "
             "libraries; pip install 'tensorflow[and-cuda]'")
  return text


def gpus(driver: pathlib.Path = _NVIDIA) -> list[str]:
  """Returns the models of this machine's NVIDIA GPUs, unless the user hides them."""
  if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
    return []
  texts = [path.read_text() for path in sorted(driver.glob("*/information"))]
  return [model.strip() for text in texts for model in re.findall(r"Model:(.*)", text)]
