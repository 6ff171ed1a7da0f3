"""The variables of Pods, right and wrong."""

from replicator.cluster import kubernetes
from tests.programs.refusals import refusal

JOB = {"REPLICATOR_HOSTS": "train-0.train,train-1.train:2300", "JOB_COMPLETION_INDEX": "1"}


def test_pods_know_each_other():
  processes = kubernetes.read(JOB)
  assert processes is not None and processes.rank == 1
  assert processes.addresses == ["train-0.train:2222", "train-1.train:2300"]


def test_there_are_none_where_no_variable_names_hosts():
  assert kubernetes.read({"JOB_COMPLETION_INDEX": "1", "KUBERNETES_PORT": "tcp://10.0.0.1"}) is None


def test_what_cannot_be_used_is_refused_in_one_line():
  for environment, message in (
      ({**JOB, "JOB_COMPLETION_INDEX": "2"},
       "JOB_COMPLETION_INDEX='2': must be the number of this process among the 2 of "
       "REPLICATOR_HOSTS, counted from 0; in a Job of Kubernetes, write completionMode: Indexed"),
      ({"REPLICATOR_HOSTS": "a,,b"},
       "REPLICATOR_HOSTS='a,,b': must be names of hosts, such as 'train-0.train,train-1.train'")):
    assert refusal(kubernetes.read, environment) == message
