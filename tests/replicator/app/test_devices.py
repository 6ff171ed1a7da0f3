"""Programs that compute with TensorFlow before they train."""

import sys

from tests.programs.logs import rows
from tests.programs.processes import forked

import pytest

PROGRAM = """
import replicator
from replicator import app
import tensorflow as tf

def main(workdir):
  held_out = tf.constant([1.0, 2.0])  # In the program.
  step = lambda: {"replicas": tf.cast(replicator.num_replicas(), tf.float32)}
  evaluate = lambda step: replicator.Evaluation({"sum": float(tf.reduce_sum(held_out))})
  replicator.train(lambda: step, evaluate=evaluate, workdir=workdir)

if __name__ == "__main__":
  app.run(main)
"""
FLAGS = ["--workdir=run", "--gin_param=train.steps = 1", "--gin_param=train.eval_every = 1"]
TWO_CPUS = ["--eager", "--gin_param=Replicator.strategy = 'mirrored'",
            "--gin_param=Replicator.logical_cpus = 2"]
TWO_PROCESSES = ["-m", "replicator", "launch", "--workers=2", "--", sys.executable]


@pytest.mark.parametrize("before, more", [
    ([], TWO_CPUS), pytest.param(
        TWO_PROCESSES, ["--gin_param=Replicator.strategy = 'multi_worker_mirrored'"],
        marks=pytest.mark.slow)], ids=["two CPUs", "two processes"])
def test_a_program_may_prepare_data_before_it_trains_on_several_replicas(before, more, tmp_path):
  (tmp_path / "program.py").write_text(PROGRAM)
  forked(*before, "program.py", *FLAGS, *more, cwd=tmp_path)
  assert [row["replicas"] for row in rows(tmp_path / "run") if "replicas" in row] == [2.0]


def test_what_computes_before_that_is_named(tmp_path):
  (tmp_path / "program.py").write_text(PROGRAM.replace(
      "def main", "HELD_OUT = tf.constant([1.0])  # When it is imported.\n\ndef main"))
  said = forked("program.py", *FLAGS, *TWO_CPUS, cwd=tmp_path, status=2).stderr
  assert said.startswith("error: Replicator.logical_cpus = 2: TensorFlow has already started with "
                         "one CPU device, at program.py:6; ")
