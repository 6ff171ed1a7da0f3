"""Manifests for Kubernetes, which start one process of a run in each of several Pods.

A JobSet is the plain way. A TFJob is for clusters with Kubeflow's training operator, and a TrainJob
for those with Kubeflow Trainer, whose `runtimeRef` is a runtime of the cluster.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from replicator.cluster.kubernetes import HOSTS
from replicator.errors import PREEMPTED_STATUS, USAGE_STATUS

_TRAINER = "node"  # Trainer's name for the Pods that train.


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
    return {
        "terminationGracePeriodSeconds": self.grace,
        "containers": [{
            "name": container, "image": self.image, "command": list(self.command),
            **({"resources": {"limits": dict(self.resources)}} if self.resources else {}),
            **self.mounts(), **more}],
        **self.claims()}

  def mounts(self) -> dict[str, Any]:
    """The part of a container that mounts the volumes; empty without any."""
    mounts = [{"name": claim, "mountPath": path} for claim, path in self.volumes.items()]
    return {"volumeMounts": mounts} if mounts else {}

  def claims(self) -> dict[str, Any]:
    """The part of a Pod that names the volumes; empty without any."""
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}}
               for claim in self.volumes]
    return {"volumes": volumes} if volumes else {}


def write(file: pathlib.Path, kind: str, pods: Pods, runtime: str = "") -> None:
  """Writes a manifest of a `kind` in `KINDS`, named as the file is; `runtime` is for a TrainJob."""
  name = file.stem
  manifest = KINDS[kind](name, pods, runtime)
  file.write_text(
      f"# {pods.count} Pods train as one run. To start them: kubectl apply -f {file}\n"
      + yaml.safe_dump(manifest, sort_keys=False, width=100))


def _jobset(name: str, pods: Pods, _: str) -> dict[str, Any]:
  """A JobSet: a Pod that is asked to stop saves with the others, and all are started again."""
  hosts = [f"{name}-worker-0-{i}.{name}" for i in range(pods.count)]
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
                  "restartPolicy": "Never", **pods.spec("trainer", env=_env(hosts))}}}}}]}}


def _rule(name: str, action: str, status: int) -> dict[str, Any]:
  return {"name": name, "action": action, "onJobFailureReasons": ["PodFailurePolicy"],
          "onJobFailureMessagePatterns": [f".* exit code {status} .*"]}


def _tfjob(name: str, pods: Pods, _: str) -> dict[str, Any]:
  """A TFJob, whose operator sets TF_CONFIG. It takes exit status 42 for a failure that lasts."""
  counts = {**({"Chief": 1, "PS": pods.ps} if pods.ps else {}), "Worker": pods.workers}
  return {
      "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name},
      "spec": {"runPolicy": {"backoffLimit": pods.max_restarts},
               "tfReplicaSpecs": {
                   kind: {"replicas": count, "restartPolicy": "OnFailure",
                          "template": {"spec": pods.spec("tensorflow")}}
                   for kind, count in counts.items()}}}


def _trainjob(name: str, pods: Pods, runtime: str) -> dict[str, Any]:
  """A TrainJob; volumes and the grace time are a patch of its runtime."""
  hosts = [f"{name}-{_TRAINER}-0-{i}.{name}" for i in range(pods.count)]
  patch = {"terminationGracePeriodSeconds": pods.grace, **pods.claims()}
  if pods.volumes:
    patch["containers"] = [{"name": _TRAINER, **pods.mounts()}]
  return {
      "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
      "metadata": {"name": name},
      "spec": {
          "runtimeRef": {"name": runtime},
          "trainer": {"image": pods.image, "command": list(pods.command), "env": _env(hosts),
                      "numNodes": pods.count,
                      **({"resourcesPerNode": {"limits": dict(pods.resources)}}
                         if pods.resources else {})},
          "runtimePatches": [{"manager": "replicator.launch", "trainingRuntimeSpec": {
              "template": {"spec": {"replicatedJobs": [{"name": _TRAINER, "template": {
                  "spec": {"template": {"spec": patch}}}}]}}}}]}}


def _env(hosts: Sequence[str]) -> list[dict[str, str]]:
  return [{"name": HOSTS, "value": ",".join(hosts)}]


KINDS: dict[str, Callable[[str, Pods, str], dict[str, Any]]] = {
    "JobSet": _jobset, "TFJob": _tfjob, "TrainJob": _trainjob}
"""The kinds of manifests."""
