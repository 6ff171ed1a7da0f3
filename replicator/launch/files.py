"""Files with which Slurm and Kubernetes start one process of a run on each of several nodes.

`templates/` has a script for Slurm's `sbatch`, and manifests. A JobSet is the plain way on
Kubernetes. A TFJob is for clusters with Kubeflow's training operator, and a TrainJob for those with
Kubeflow Trainer.
"""

import argparse
import json
import os
import pathlib
import shlex

from replicator.errors import PREEMPTED_STATUS, USAGE_STATUS

KINDS = ("JobSet", "TFJob", "TrainJob")
"""The kinds of manifests."""


def write(file: pathlib.Path, template: str, flags: argparse.Namespace) -> None:
  """Writes a file from a template: for what the flags of the launcher say, and named as it is."""
  import jinja2  # It is not needed to start processes.
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
      keep_trailing_newline=True)
  environment.filters["json"] = json.dumps  # It is YAML, too.
  servers = [f"--gin_param=Replicator.servers = {flags.ps}"] if flags.ps else []
  command, nodes = [*flags.command, *servers], flags.workers + flags.ps + bool(flags.ps)
  hosts_of = lambda prefix: ",".join(f"{prefix}{i}.{file.stem}" for i in range(nodes))
  file.write_text(environment.get_template(template).render({
      **vars(flags), "command": command, "shell_line": shlex.join(command), "nodes": nodes,
      "hosts_of": hosts_of, "file": file, "name": file.stem, "folder": shlex.quote(os.getcwd()),
      "usage": USAGE_STATUS, "preempted": PREEMPTED_STATUS}))
