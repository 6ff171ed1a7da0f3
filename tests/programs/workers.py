"""Workers of one run, started one by one, as on machines of their own."""

import contextlib
import ctypes
import functools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from tests.programs.processes import ROOT, SECONDS, free_addresses, wait_until

SETTINGS = ["train.log_every = 1", "train.eval_every = 0", "Guard.action = 'off'",
            "Guard.signals = False", "Replicator.strategy = 'multi_worker_mirrored'"]


@contextlib.contextmanager
def running(workdir: pathlib.Path, *of_each: Sequence[str], addresses: Sequence[str] = (),
            hosts: Sequence[str] = (), kinds: Sequence[str] = (), paths: Sequence[object] = (),
            command: Sequence[str] = ("tests.programs.fragile",)
            ) -> Iterator[list[subprocess.Popen]]:
  """Runs a worker with further settings `of_each`; None in their place starts none.

  `hosts` are network namespaces, and `paths` what each may import besides, one for each. With
  `kinds`, such as ("chief", "worker"), they are not all workers.
  """
  addresses = addresses or free_addresses(len(of_each))
  cluster: dict[str, list[str]] = {}
  processes = []
  for kind, address in zip(kinds or ["worker"] * len(addresses), addresses, strict=True):
    cluster.setdefault(kind, []).append(address)
  tasks = [(kind, index) for kind, each in cluster.items() for index in range(len(each))]
  for index, settings in enumerate(of_each):
    path = {"PYTHONPATH": f"{paths[index]}:{ROOT}"} if paths else {}
    task = dict(zip(("type", "index"), tasks[index], strict=True))
    config = json.dumps({"cluster": cluster, "task": task})
    processes.append(settings is not None and subprocess.Popen(
        [sys.executable, "-m", *command, f"--workdir={workdir}",
         *(f"--gin_param={each}" for each in [*SETTINGS, *(settings or ())])],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "TF_CONFIG": config, **path},
        preexec_fn=functools.partial(enter, hosts[index]) if hosts else None))
  try:
    yield [process for process in processes if process]
  finally:
    for process in processes:
      if process:
        process.kill()
        process.communicate()


def enter(host: str) -> None:
  """Moves this process into a network namespace."""
  file = os.open(f"/run/netns/{host}", os.O_RDONLY)
  assert ctypes.CDLL(None).setns(file, 0) == 0
  os.close(file)


def has_logged(workdir: pathlib.Path, steps: int) -> None:
  """Waits until a run has logged so many steps, one in each line."""
  log = workdir / "metrics.jsonl"
  wait_until(lambda: log.exists() and log.read_text().count("\n") >= steps)


def ended(process: subprocess.Popen, status: int) -> list[str]:
  """The error lines of a process that ends with this status."""
  output, _ = process.communicate(timeout=SECONDS)
  assert process.returncode == status, output
  assert "Traceback" not in output
  return [line for line in output.splitlines() if line.startswith("error: ")]
