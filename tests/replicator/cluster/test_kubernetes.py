"""The variables of Pods, right and wrong."""

from replicator.cluster import kubernetes
from tests.programs.refusals import refusal

JOB = {"REPLICATOR_HOSTS": "train-0.train,train-1.train:2300", "JOB_COMPLETION_INDEX": "1"}
# What Trainer 2.3 sets for its runtimes of JAX and of PyTorch.
JAX = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0",
       "JAX_COORDINATOR_ADDRESS": "job-node-0-0.job:1234"}
TORCH = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job",
         "PET_MASTER_PORT": "29400"}
OF_TRAINER = ["job-node-0-0.job:2222", "job-node-0-1.job:2222"]


def test_pods_know_each_other():
  for environment, addresses, rank in (
      (JOB, ["train-0.train:2222", "train-1.train:2300"], 1), (JAX, OF_TRAINER, 0),
      (TORCH, OF_TRAINER, 1)):
    processes = kubernetes.read(environment)
    assert processes is not None and (processes.addresses, processes.rank) == (addresses, rank)


def test_there_are_none_where_no_variable_names_hosts():
  assert kubernetes.read({"JOB_COMPLETION_INDEX": "1", "KUBERNETES_PORT": "tcp://10.0.0.1"}) is None


def test_what_cannot_be_used_is_refused_in_one_line():
  for environment, message in (
      ({**JOB, "JOB_COMPLETION_INDEX": "2"},
       "JOB_COMPLETION_INDEX='2': must be the number of this process among the 2 of "
       "REPLICATOR_HOSTS, counted from 0; in a Job of Kubernetes, write completionMode: Indexed"),
      ({"REPLICATOR_HOSTS": "a,,b"},
       "REPLICATOR_HOSTS='a,,b': must be names of hosts, such as 'train-0.train,train-1.train'"),
      ({**JAX, "JAX_COORDINATOR_ADDRESS": "coordinator:1234"},
       "JAX_NUM_PROCESSES='2', JAX_COORDINATOR_ADDRESS='coordinator:1234': must be a number of "
       "hosts, and the first of them, whose name ends in -0; or set REPLICATOR_HOSTS")):
    assert refusal(kubernetes.read, environment) == message
