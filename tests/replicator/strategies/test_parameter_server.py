"""Asynchronous training. What it needs of TensorFlow lasts as long as a process: each test has one.

How the launcher starts a dead worker again is in `launch/test_supervisor.py`.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from tests.programs.forks import in_a_fork
from tests.programs.processes import ROOT, SECONDS, free_addresses, python, wait_until
from tests.programs.workers import ended, running

import numpy as np
import pytest

SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"

# A cluster inside one process.
CLUSTER = """
import json, os, time
import replicator
from replicator.tools import launch
from tests.programs.processes import free_addresses
import keras, tensorflow as tf
chief, *others = launch.tf_configs(free_addresses(5), ps=2)
threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)  # They share one process.
servers = [tf.distribute.Server(chief["cluster"], job_name=other["task"]["type"],
                                task_index=other["task"]["index"], protocol="grpc", config=threads)
           for other in others]
os.environ["TF_CONFIG"] = json.dumps(chief)
from replicator.strategies.compiled_step import CompiledStep
cluster = replicator.Replicator("parameter_server")
found = {}

# By bytes: 400 | 40 + 40 + 320, which is a tie: 8 | 4.
with cluster.scope():
  weights = [keras.Variable(tf.zeros([n]), dtype=dtype) for n, dtype in [
      (100, "float32"), (10, "float32"), (10, "float32"), (40, "float64"), (2, "float32"),
      (1, "float32")]]
  optimizer = replicator.wrap_optimizer(keras.optimizers.Adam(), weights, ema_decay=0.9)
found["devices"] = [weight.value.device for weight in weights]
adam = optimizer.keras_optimizer
found["moments"] = [[m.value.device for m in moments]
                    for moments in (adam._momentums, adam._velocities)]

# The first step has begun before three others begin, and ends after they have ended. What
# schedules it does not wait for it.
with cluster.scope():
  has_begun, may_end = tf.Variable(False), tf.Variable(False)
def slow():
  has_begun.assign(True)
  tf.while_loop(tf.logical_not, lambda end: may_end.read_value(), [may_end.read_value()])
  return {"loss": 2.0}
def quick():
  return {"replicas": replicator.num_replicas(), "sum": replicator.all_sum(tf.constant(5.0))}
slowly = CompiledStep(cluster, slow, 1, logs=True)
quickly = CompiledStep(cluster, quick, 3, logs=True)
slow_result = slowly(0, None)
while not has_begun.numpy():
  time.sleep(0.01)
quick_result = quickly(1, None)
found["quick"] = {name: values.tolist() for name, values in quick_result.fetch()[0].items()}
may_end.assign(True)
found["slow"] = {name: values.tolist() for name, values in slow_result.fetch()[0].items()}
found["to_save"] = len(quickly.variables())
found["description"] = cluster.servers.describe()
print(json.dumps(found))
"""


def test_variables_are_spread_by_size_and_staleness_is_counted():
  found = json.loads(python("-c", CLUSTER).stdout.splitlines()[-1])
  assert found["devices"] == [SERVER.format(i) for i in (0, 1, 1, 1, 0, 1)]
  # One for the float32 variables of each server, and one for the float64 variable.
  assert found["moments"] == [[SERVER.format(i) for i in (0, 1, 1)]] * 2
  assert found["slow"] == {"loss": [2.0], "staleness": [3.0]}
  assert found["quick"] == {"replicas": [1.0] * 3, "sum": [5.0] * 3, "staleness": [0.0] * 3}
  assert found["to_save"] == 0  # The count of all steps is none of the step's own variables.
  assert found["description"] == (
      "workers: 2, parameter servers: 2; each step and its collectives see one replica with "
      "the whole global batch")


class Run:
  """A training under the launcher, with processes that can be killed by name."""

  def __init__(self, workdir: pathlib.Path, *bindings: str):
    self.metrics = workdir / "metrics.jsonl"
    self.process = subprocess.Popen(
        [sys.executable, "-m", "replicator", "launch", "--workers=2", "--ps=2", "--",
         sys.executable, "-m", "tests.programs.asynchronous", f"--workdir={workdir}",
         "--gin_param=Replicator.strategy = 'parameter_server'",
         *(f"--gin_param={binding}" for binding in bindings)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    self.lines: list[str] = []

  def wait_for_rows(self, count: int) -> None:
    """Waits until the log has so many rows more than it has now."""
    rows = lambda: self.metrics.read_text().count("\n") if self.metrics.exists() else 0
    wanted = rows() + count
    wait_until(lambda: rows() >= wanted or self.process.poll() is not None)
    assert self.process.poll() is None, self.process.communicate()

  def read_process_numbers(self) -> dict[str, int]:
    """`{"worker 0": 4711, ...}` of all five processes."""
    numbers: dict[str, int] = {}
    assert self.process.stdout is not None
    while len(numbers) < 5:
      self.lines.append(self.process.stdout.readline())
      assert self.lines[-1], self.process.communicate()
      found = re.match(r"\[(.+)\] process (\d+)", self.lines[-1])
      if found:
        numbers[found[1]] = int(found[2])
    return numbers


def kill_in_the_middle_of_a_step(process: int) -> None:
  os.kill(process, signal.SIGSTOP)
  time.sleep(0.5)  # It surely has a step now, and will not end it.
  os.kill(process, signal.SIGKILL)


@pytest.mark.slow
@in_a_fork
def test_one_core_is_enough(tmp_path):
  core = min(os.sched_getaffinity(0))
  done = subprocess.run(
      [sys.executable, "-m", "replicator", "launch", "--workers=1", "--ps=1", "--",
       sys.executable, "-m", "tests.programs.asynchronous", f"--workdir={tmp_path / 'run'}",
       "--gin_param=Replicator.strategy = 'parameter_server'", "--gin_param=train.steps = 6"],
      cwd=ROOT, capture_output=True, text=True, timeout=300,
      preexec_fn=lambda: os.sched_setaffinity(0, {core}))
  assert done.returncode == 0, done.stdout + done.stderr
  assert "step 6/6" in done.stdout + done.stderr


@pytest.mark.slow
@in_a_fork
def test_workers_die_and_join_again(tmp_path):
  run = Run(tmp_path, "train.steps = 300", "train.log_every = 10", "train.eval_every = 0",
            "train.checkpoint_every = 0", "train.global_batch_size = 8")
  processes = run.read_process_numbers()
  run.wait_for_rows(1)
  for name in ("ps 0", "worker 1"):  # Alone it ends no server while there is a chief.
    os.kill(processes[name], signal.SIGTERM)
  kill_in_the_middle_of_a_step(processes["worker 0"])
  run.wait_for_rows(1)  # The other goes on.
  kill_in_the_middle_of_a_step(processes["worker 1"])
  out, err = run.process.communicate(timeout=SECONDS)  # Which needs one that has joined again.

  assert run.process.returncode == 0, out + err
  assert err.splitlines() == [
      f"launch: worker {i} ended with status 137, and was restarted" for i in range(2)]
  assert all(f"[chief 0] worker {i} is gone: the others do its work until it comes back" in out
             for i in range(2))
  rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
  assert [row["step"] for row in rows] == list(range(10, 301, 10))
  assert all(list(row) == ["step", "seconds", "critic", "generator", "grad_norm/generator",
                           "grad_norm/critic", "staleness", "learning_rate/generator",
                           "learning_rate/critic", "data_wait", "system/examples_per_second",
                           "system/memory_mib"] for row in rows)
  assert np.isfinite([row["critic"] for row in rows]).all()
  assert max(row["staleness"] for row in rows) > 0
  line = next(line for line in out.splitlines() if line.startswith("[chief 0] trained "))
  trained = json.loads(line.removeprefix("[chief 0] trained "))
  # At most the two steps that a kill interrupted were begun twice.
  assert 300 <= trained["runs"] <= 302
  assert trained["devices"] == [SERVER.format(0), SERVER.format(1)]


@pytest.mark.slow
@in_a_fork
def test_processes_that_a_manager_numbers_train_and_end_by_themselves(tmp_path):
  addresses = free_addresses(4)
  environment = {**os.environ, "REPLICATOR_HOSTS": ",".join(addresses)}
  processes = [subprocess.Popen(
      [sys.executable, "-m", "tests.programs.fragile", f"--workdir={tmp_path}",
       "--gin_param=train.steps = 8", "--gin_param=train.global_batch_size = 2",
       "--gin_param=Guard.action = 'off'",
       "--gin_param=Replicator.strategy = 'parameter_server'"],
      cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      env={**environment, "JOB_COMPLETION_INDEX": str(index)}) for index in range(4)]
  outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
  assert [process.returncode for process in processes] == [0] * 4, outputs
  # The first one is the chief, and the second one is the parameter server.
  assert (f"chief {addresses[0]}; ps {addresses[1]}; worker {addresses[2]}, {addresses[3]} (from "
          "REPLICATOR_HOSTS and JOB_COMPLETION_INDEX)") in outputs[0]
  assert "8/8" in outputs[0] and "workers: 2, parameter servers: 1" in outputs[0]


@pytest.mark.slow
@in_a_fork
@pytest.mark.parametrize("absent", ["chief", "worker"])
def test_processes_wait_for_one_that_does_not_start_and_name_it(absent, tmp_path):
  kinds, addresses = ("chief", "ps", "worker"), free_addresses(3)
  settings = ["Replicator.strategy = 'parameter_server'", "Replicator.join_timeout = 2.0"]
  late = (f"error: {absent} 0 ({addresses[kinds.index(absent)]}) did not start within 2 seconds; "
          "start all processes of the run together, or increase Replicator.join_timeout")
  with running(tmp_path, *(None if kind == absent else settings for kind in kinds), kinds=kinds,
               addresses=addresses, command=("tests.programs.asynchronous",)) as processes:
    errors = [ended(process, 1)[-1] for process in processes]
  assert errors == [late, late]
