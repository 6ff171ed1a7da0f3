"""The manifests of `--kubernetes`: accepted by the schemas, with variables that name all Pods.

That their containers train is in `strategies/test_two_hosts.py`.
"""

import json

from replicator.strategies.cluster import managers
from replicator.tools.launch import __main__

import pytest
import yaml

COMMAND = ["python", "-m", "experiments.sngan", "--gin_param=a.b = 'c \"d\"'",
           "--gin_file=strategies/multi_worker_mirrored.gin", "--workdir=/work/run"]
WITH_SERVERS = [*COMMAND, "--gin_param=Replicator.strategy = 'parameter_server'"]


def written(tmp_path, *flags: str, command=COMMAND) -> dict:
  file = tmp_path / "train.yaml"
  assert __main__.main(["--workers=2", f"--kubernetes={file}", "--image=registry/image:1", *flags,
                        "--", *command]) == 0
  return yaml.safe_load(file.read_text())


ALL = ["--resource=cpu=4", "--resource=nvidia.com/gpu=1", "--volume=shared:/work",
       "--max_restarts=3", "--grace=90"]


def test_a_jobset_is_what_kubernetes_and_its_controller_accept(tmp_path):
  kubernetes_validate = pytest.importorskip("kubernetes_validate")  # It takes seconds to import.
  pytest.importorskip("kubeflow_trainer_api")
  from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
  manifest = written(tmp_path, *ALL)
  # The models drop what they do not know.
  assert JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest
  job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
  kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job",
                                "metadata": {"name": "train"}, "spec": job}, "1.31", strict=True)
  pod = job["template"]["spec"]
  container = pod["containers"][0]
  assert container["command"] == COMMAND and container["image"] == "registry/image:1"
  assert container["resources"] == {"limits": {"cpu": "4", "nvidia.com/gpu": "1"}}
  own = {each["name"]: each["value"] for each in container["env"]}
  assert own == {"REPLICATOR_HOSTS": "train-worker-0-0.train,train-worker-0-1.train"}
  processes = managers.of_kubernetes({**own, "JOB_COMPLETION_INDEX": "1"})
  assert processes is not None and len(processes.addresses) == job["completions"]
  assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/work"}]
  assert pod["terminationGracePeriodSeconds"] == 90
  # A Pod that saved and ended with 42 costs none of the restarts.
  assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 42]
  policy = manifest["spec"]["failurePolicy"]
  assert policy["maxRestarts"] == 3
  assert policy["rules"][0]["action"] == "RestartJobSetAndIgnoreMaxRestarts"


def test_a_tfjob_and_a_trainjob_are_what_kubeflow_accepts(tmp_path):
  pytest.importorskip("kubeflow.training")
  pytest.importorskip("kubeflow_trainer_api")
  from kubeflow.training import ApiClient
  from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
  manifest = written(tmp_path, *ALL, "--kind=TFJob", "--ps=1", command=WITH_SERVERS)

  class Answer:
    data = json.dumps(manifest)

  client = ApiClient()
  model = client.deserialize(Answer(), "KubeflowOrgV1TFJob")
  assert client.sanitize_for_serialization(model) == manifest
  replicas = manifest["spec"]["tfReplicaSpecs"]
  assert {kind: of_kind["replicas"] for kind, of_kind in replicas.items()} == {
      "Chief": 1, "PS": 1, "Worker": 2}
  manifest = written(tmp_path, *ALL, "--kind=TrainJob", "--runtime=plain")
  assert TrainerV1alpha1TrainJob.from_dict(manifest).to_dict() == manifest
  assert manifest["spec"]["runtimeRef"] == {"name": "plain"}
  assert manifest["spec"]["trainer"]["env"][0]["value"] == (
      "train-node-0-0.train,train-node-0-1.train")


@pytest.mark.parametrize("flags, message", [
    (["--kubernetes=Job_1.yaml", "--image=x"], "the file name is also the job name"),
    (["--kubernetes=job.yaml"], "add the container image, --image=IMAGE"),
    (["--kubernetes=missing/job.yaml", "--image=x"], "No such file or directory"),
    (["--kubernetes=job.yaml", "--image=x", "--volume=/work"],
     "'/work' must be two words with ':' between")])
def test_what_cannot_be_written_is_refused_in_one_line(
    flags, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert __main__.main(["--workers=2", *flags, "--", "true"]) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1


RUN = ["replicator", "run", "sngan"]
SHARED = ["--workdir=runs/shared"]
TOGETHER = ["--gin_file=strategies/multi_worker_mirrored.gin"]


@pytest.mark.parametrize("flags, command, message", [
    (["--slurm=job.sh"], [*RUN, *TOGETHER], "--slurm=job.sh: the command has no --workdir, but "),
    (["--slurm=job.sh"], [*RUN, *SHARED], "the command sets no Replicator.strategy, so each proc"),
    (["--slurm=job.sh"], ["python", "mine.py", *SHARED, "--gin_param=Replicator.strategy = 'tpu'"],
     "the command has Replicator.strategy = 'tpu', so each process would train alone; add "
     "--gin_file=strategies/multi_worker_mirrored.gin"),
    (["--slurm=job.sh", "--ps=1"], [*RUN, *SHARED, *TOGETHER], "add --gin_file=strategies/parame"),
    (["--kubernetes=job.yaml", "--image=x", "--volume=a:/work"], [*RUN, *SHARED, *TOGETHER],
     "--workdir=runs/shared would be lost with its Pod, and no other Pod sees it; use a path "),
    (["--slurm=job.sh"], [*RUN, *SHARED, *TOGETHER], None),
    (["--slurm=job.sh"], ["python", "mine.py", *SHARED, "--gin_param=a.b = 1"], None),
    (["--kubernetes=job.yaml", "--image=x"], [*RUN, "--workdir=s3://bucket/run", *TOGETHER], None)])
def test_a_command_that_would_fail_on_a_cluster_is_refused(
    flags, command, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert __main__.main(["--workers=2", *flags, "--", *command]) == (2 if message else 0)
  if message:
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
