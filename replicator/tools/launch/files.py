"""Writes files that make Slurm or Kubernetes start one process of a run on each of several nodes.

`templates/` has a script for Slurm's `sbatch`, and manifests for Kubernetes. A JobSet is the
default. A TFJob is for clusters with Kubeflow's training operator, and a TrainJob for those with
Kubeflow Trainer.
"""

import argparse
import json
import os
import pathlib
import re
import shlex

from replicator.errors import PREEMPTED_STATUS, USAGE_STATUS, UsageError
from replicator.tools.launch import command as command_lib

KINDS = ("JobSet", "TFJob", "TrainJob")  # The kinds of manifests.


def write(flags: argparse.Namespace) -> None:
  """Writes the file named by `--slurm` or `--kubernetes`, or raises a UsageError."""
  import jinja2  # Not needed to start processes.
  file = flags.slurm or flags.kubernetes
  if flags.kubernetes and not flags.image:
    raise UsageError(f"--kubernetes={file}: add the container image, --image=IMAGE")
  if flags.kubernetes and not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", file.stem):
    raise UsageError(f"--kubernetes={file}: the file name is also the job name, which may have at "
                     "most 40 lowercase letters, digits and hyphens")
  command_lib.check(flags, f"--slurm={file}" if flags.slurm else f"--kubernetes={file}")
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
      keep_trailing_newline=True)
  environment.filters["json"] = json.dumps  # JSON is also YAML.
  servers = [f"--gin_param=Replicator.servers = {flags.ps}"] if flags.ps else []
  command, nodes = [*flags.command, *servers], flags.workers + flags.ps + bool(flags.ps)
  hosts_of = lambda prefix: ",".join(f"{prefix}{i}.{file.stem}" for i in range(nodes))
  template = environment.get_template("slurm.sh" if flags.slurm else f"{flags.kind}.yaml")
  try:
    file.write_text(template.render({
        **vars(flags), "command": command, "shell_line": shlex.join(command), "nodes": nodes,
        "hosts_of": hosts_of, "file": file, "name": file.stem, "folder": shlex.quote(os.getcwd()),
        "usage": USAGE_STATUS, "preempted": PREEMPTED_STATUS}))
    if flags.slurm:
      file.chmod(0o755)
  except OSError as error:
    raise UsageError(f"cannot write {file}: {error.strerror}") from error
  print(f"{file}: " + (f"submit it with 'sbatch {file}'" if flags.slurm else
                       f"start it with 'kubectl apply -f {file}'"))
