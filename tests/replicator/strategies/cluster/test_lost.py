"""Which process is missing, from what TensorFlow 2.21 says of it."""

from replicator.strategies.cluster import lost
from tests.programs.grpc_server import serving

import pytest

CLUSTER = {"worker": ["n1:1", "n2:2", "n3:3"]}
ABORTED = "Collective ops is aborted by: "
BROKEN = (ABORTED + "recvmsg:Connection reset by peer\n"
          "Additional GRPC error information from remote target /job:worker/replica:0/task:1 "
          "while calling /tensorflow.WorkerService/RecvBuf:\n")
NO_HEARTBEAT = (ABORTED + "Error reported from /job:worker/task:2: The following tasks are "
                "unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:2\n")
TWICE = (ABORTED + "Error reported from /job:worker/task:1: /job:worker/replica:0/task:1 "
         "unexpectedly tried to connect with a different incarnation. It has likely restarted")
NO_LEADER = ABORTED + "Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat\n"


def test_the_lost_process_is_named():
  # A graph names the device of an operation, which is this process's own.
  own = "Detected at node on /job:worker/replica:0/task:0/device:CPU:0\n"
  for message, name in (
      (own + BROKEN, "worker 1 (n2:2)"), (NO_HEARTBEAT, "worker 2 (n3:3)"),
      (NO_LEADER, "worker 0 (n1:1)"),
      # From a process that had lost another one.
      (f"{ABORTED}Error reported from /job:worker/task:2: {lost.NEWS}worker 1 (n2:2) [type]",
       "worker 1 (n2:2)"),
      (own + TWICE, "worker 1 (n2:2)"), (own + "Incompatible shapes", None),
      (f"{ABORTED}Shape mismatch", None)):
    assert lost.lost_process(message, CLUSTER) == name, message
  assert lost.lost_process(NO_LEADER, {"chief": ["n0:1"], **CLUSTER}) == "chief 0 (n0:1)"
  said, news = lost.failure(TWICE, CLUSTER)
  assert said.startswith("worker 1 (n2:2) was started twice; restart all processes of the run, ")
  assert lost.failure(f"{ABORTED}Error reported from /job:worker/task:0: {news}", CLUSTER) == (
      said, news)


@pytest.mark.parametrize("host", ["127.0.0.1", "[127.0.0.1]"])  # IPv6 stands in brackets.
def test_whether_tensorflow_listens(host):
  with serving() as port:
    assert lost.listens(f"{host}:{port}")
  assert not lost.listens(f"{host}:{port}")
