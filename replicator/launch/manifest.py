"""Manifests for Kubernetes, which start one process of a run in each of several Pods.

A JobSet is the plain way, also beside Kubeflow Trainer, which is built on it. A TFJob is for
clusters with Kubeflow's training operator.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from replicator.cluster.managers import HOSTS
from replicator.errors import PREEMPTED_STATUS, USAGE_STATUS


@dataclasses.dataclass(frozen=True)
class Pods:
  """The Pods of a run, as a manifest describes them.

  Attributes:
    command: the words of the command, which each Pod runs.
    workers: the number of Pods; with `ps`, those besides the chief.
    ps: the number of parameter servers.
    image: the container's image.
    resources: what each Pod gets, such as `{"cpu": "4", "nvidia.com/gpu": "1"}`.
    volumes: what all Pods mount, `{claim: path}`: persistent volume claims.
    grace: the seconds that a Pod has to save before it is killed.
    max_restarts: how often all Pods are started again when one is lost.
  """

  command: Sequence[str]
  workers: int
  ps: int
  image: str
  resources: Mapping[str, str]
  volumes: Mapping[str, str]
  grace: int
  max_restarts: int

  @property
  def count(self) -> int:
    """The number of all Pods."""
    return self.workers + self.ps + bool(self.ps)

  def spec(self, container: str, **more: Any) -> dict[str, Any]:
    """The specification of a Pod whose container has this name."""
    contained = {"name": container, "image": self.image, "command": list(self.command), **more}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": self.grace, "containers": [contained]}
    if self.resources:
      contained["resources"] = {"limits": dict(self.resources)}
    if self.volumes:
      contained["volumeMounts"] = [{"name": claim, "mountPath": path}
                                   for claim, path in self.volumes.items()]
      spec["volumes"] = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}}
                         for claim in self.volumes]
    return spec


def write(file: pathlib.Path, kind: str, pods: Pods) -> None:
  """Writes a manifest of a `kind` in `KINDS`, named as the file is."""
  manifest = KINDS[kind](file.stem, pods)
  file.write_text(
      f"# {pods.count} Pods train as one run. To start them: kubectl apply -f {file}\n"
      + yaml.safe_dump(manifest, sort_keys=False, width=100))


def _jobset(name: str, pods: Pods) -> dict[str, Any]:
  """A JobSet: a Pod that is asked to stop saves with the others, and all are started again."""
  hosts = ",".join(f"{name}-worker-0-{i}.{name}" for i in range(pods.count))
  return {
      "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
      "spec": {
          "network": {"enableDNSHostnames": True, "subdomain": name},
          "failurePolicy": {"maxRestarts": pods.max_restarts, "rules": [
              _rule("preempted", "RestartJobSetAndIgnoreMaxRestarts", PREEMPTED_STATUS),
              _rule("usage", "FailJobSet", USAGE_STATUS)]},
          "replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": {
              "parallelism": pods.count, "completions": pods.count, "completionMode": "Indexed",
              # One Pod that is replaced cannot join the others: all start again.
              "backoffLimit": 0,
              "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {
                  "containerName": "trainer", "operator": "In",
                  "values": [USAGE_STATUS, PREEMPTED_STATUS]}}]},
              "template": {"spec": {
                  "restartPolicy": "Never", **pods.spec(
                      "trainer", env=[{"name": HOSTS, "value": hosts}])}}}}}]}}


def _rule(name: str, action: str, status: int) -> dict[str, Any]:
  return {"name": name, "action": action, "onJobFailureReasons": ["PodFailurePolicy"],
          "onJobFailureMessagePatterns": [f".* exit code {status} .*"]}


def _tfjob(name: str, pods: Pods) -> dict[str, Any]:
  """A TFJob, whose operator sets TF_CONFIG. It takes exit status 42 for a failure that lasts."""
  counts = {**({"Chief": 1, "PS": pods.ps} if pods.ps else {}), "Worker": pods.workers}
  return {
      "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name},
      "spec": {"runPolicy": {"backoffLimit": pods.max_restarts},
               "tfReplicaSpecs": {
                   kind: {"replicas": count, "restartPolicy": "OnFailure",
                          "template": {"spec": pods.spec("tensorflow")}}
                   for kind, count in counts.items()}}}


KINDS: dict[str, Callable[[str, Pods], dict[str, Any]]] = {"JobSet": _jobset, "TFJob": _tfjob}
"""The kinds of manifests."""
