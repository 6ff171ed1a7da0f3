"""The variables of Slurm, as `srun` 22.05 sets them, and of Pods, right and wrong."""

import json
import os

from replicator.strategies.cluster import managers, tf_config
from tests.programs.refusals import refusal

# The second process on the second of two hosts.
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[9-10]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "3", "SLURM_NODEID": "1",
        "SLURM_LOCALID": "1"}
JOB = {"REPLICATOR_HOSTS": "train-0.train,train-1.train:2300", "JOB_COMPLETION_INDEX": "1"}
# What Trainer 2.3 sets for its runtimes of JAX and of PyTorch.
JAX = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0",
       "JAX_COORDINATOR_ADDRESS": "job-node-0-0.job:1234"}
TORCH = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job",
         "PET_MASTER_PORT": "29400"}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}
OF_TRAINER = ["job-node-0-0.job:2222", "job-node-0-1.job:2222"]


def test_lists_of_hosts_are_expanded_in_order():
  for text, expected in (
      ("n1", "n1"), ("n[9-10]", "n9 n10"), ("a[08-10,12]b,c", "a08b a09b a10b a12b c"),
      ("r[0-1]n[0-1],x-y.z", "r0n0 r0n1 r1n0 r1n1 x-y.z"), ("n[001,3]", "n001 n3")):
    assert managers.hosts(text) == expected.split(), text


def test_ranks_that_go_round_the_hosts_are_numbered_by_their_places():
  numbers = [managers.of_slurm({**STEP, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank % 2),
                                "SLURM_LOCALID": str(rank // 2)}).rank for rank in range(4)]
  assert numbers == [0, 2, 1, 3]  # As of `srun --distribution=cyclic`.


def test_processes_fill_one_host_after_the_other_with_ports_of_the_job():
  processes = managers.of_slurm(STEP)
  assert processes is not None and processes.rank == 3
  hosts, ports = zip(*(address.split(":") for address in processes.addresses), strict=True)
  assert hosts == ("n9", "n9", "n10", "n10")
  first = int(ports[0])
  assert [int(port) - first for port in ports] == [0, 1, 2, 3] and 12000 <= first < 32768
  assert processes.source == "Slurm step 7.0"
  for other in ({"SLURM_JOB_ID": "8"}, {"SLURM_STEP_ID": "1"}):  # They may share the hosts.
    others = managers.of_slurm({**STEP, **other})
    assert others is not None and not {*others.addresses} & {*processes.addresses}


def test_there_are_none_outside_of_a_step_or_a_job():
  # The variables of the batch script, which runs once, on the first host.
  assert managers.of_slurm({
      "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[9-10]", "SLURM_PROCID": "0",
      "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}) is None
  assert managers.of_kubernetes({"JOB_COMPLETION_INDEX": "1", "KUBERNETES_PORT": "tcp://h"}) is None


def test_pods_know_each_other():
  for environment, addresses, rank in (
      (JOB, ["train-0.train:2222", "train-1.train:2300"], 1), (JAX, OF_TRAINER, 0),
      (TORCH, OF_TRAINER, 1)):
    processes = managers.of_kubernetes(environment)
    assert processes is not None and (processes.addresses, processes.rank) == (addresses, rank)


def test_hosts_of_sagemaker_know_each_other():
  assert managers.of_sagemaker({}) is None
  assert tf_config.found(SAGEMAKER) == (
      ["algo-1:2222", "algo-2:2222"], 1, "SM_HOSTS and SM_CURRENT_HOST")
  assert refusal(managers.of_sagemaker, {**SAGEMAKER, "SM_CURRENT_HOST": "algo-3"}) == (
      "SM_CURRENT_HOST='algo-3': must be one of SM_HOSTS=[\"algo-1\",\"algo-2\"]")


def test_what_cannot_be_used_is_refused_in_one_line():
  for changed, said in (
      ({"SLURM_STEP_NODELIST": "n[1-"}, "'n[1-' is not a list of hosts such as n[1-2,4]"),
      ({"SLURM_LOCALID": ""}, "SLURM_LOCALID='': is not a number"),
      ({"SLURM_LOCALID": "2"}, "SLURM_STEP_TASKS_PER_NODE=2(x2) has no such task; start the"),
      ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "has 2 hosts, but SLURM_STEP_TASKS_PER_NODE=2 has 1")):
    assert said in refusal(managers.of_slurm, {**STEP, **changed})
  for environment, said in (
      ({**JOB, "JOB_COMPLETION_INDEX": "2"}, "set completionMode: Indexed"),
      ({**JOB, "REPLICATOR_HOSTS": "a,,b"}, "='a,,b': must be host names, such as "),
      ({**JAX, "JAX_COORDINATOR_ADDRESS": "coordinator:1234"},
       "JAX_COORDINATOR_ADDRESS='coordinator:1234': must be the number of hosts, and ")):
    assert said in refusal(managers.of_kubernetes, environment)


def test_the_strategies_get_their_jobs(monkeypatch):
  monkeypatch.delenv("TF_CONFIG", raising=False)
  for name, value in STEP.items():
    monkeypatch.setenv(name, value)
  assert tf_config.number_of(os.environ) == 3 and tf_config.are_several(os.environ)
  config, source = tf_config.make("multi_worker_mirrored")
  assert {kind: len(each) for kind, each in config["cluster"].items()} == {"worker": 4}
  assert config["task"] == {"type": "worker", "index": 3} and source == "Slurm step 7.0"
  assert json.loads(os.environ["TF_CONFIG"]) == config  # TensorFlow reads it.
  del os.environ["TF_CONFIG"]
  config, _ = tf_config.make("parameter_server", "slurm", servers=2)
  assert {kind: len(each) for kind, each in config["cluster"].items()} == {
      "chief": 1, "ps": 2, "worker": 1}
  assert config["task"] == {"type": "worker", "index": 0}
  del os.environ["TF_CONFIG"]
  assert refusal(tf_config.make, "parameter_server", "auto", 3) == (
      "Replicator.servers = 3: Slurm step 7.0 has 4 processes; there must be a chief, at least "
      "one parameter server, and at least one worker")
