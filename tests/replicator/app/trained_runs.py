"""Runs of a small program, trained here, for `replicator.load`."""

import json
import pathlib

import gin
import keras
import pytest

from replicator.app import config
from replicator.app.program import main_of_run
from replicator.workdir import charts

# Each step counts up; each replica also counts for itself.
PROGRAM = '''
import gin
import tensorflow as tf

import replicator
from replicator import app


@gin.configurable(denylist=["x"])
def scaled(x, factor=1.0) -> tf.Tensor:
  return factor * x


@gin.configurable
class Counter(tf.Module):
  def __init__(self, size=2, function=scaled, device=0):
    super().__init__()
    self.device = device
    with replicator.logical_device(device):
      self.weight = tf.Variable(2.0)
    self.count = tf.Variable(tf.zeros([size], replicator_dtype()), trainable=False,
                             aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    self.own = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN,
                           synchronization=tf.VariableSynchronization.ON_READ)
    self.function = function

  def __call__(self):
    self.count.assign_add(tf.ones_like(self.count))
    self.own.assign_add(1.0 + 2.0 * tf.cast(replicator.replica_id(), tf.float32))
    return {"count": self.count[0], "scaled": self.function(self.count[0])}

  def apply(self, x):
    with replicator.logical_device(self.device):
      return self.function(x)


def replicator_dtype():
  import keras
  return keras.config.floatx()


@gin.configurable
def main(workdir: str, needs: str = "") -> None:
  if needs:
    open(needs).close()
  replicator.train(Counter, workdir=workdir)


if __name__ == "__main__":
  app.run(main)
'''
BASE = ["train.steps = 4", "train.checkpoint_every = 1", "train.log_every = 1",
        "train.global_batch_size = 2", "Checkpoints.keep_last = 3"]


def facts_for(file: pathlib.Path) -> dict:
  return {"program": [file.name], "program_file": str(file), "argv": [],
          "working_directory": str(file.parent)}


def trained(program: pathlib.Path, folder: pathlib.Path, *bindings: str) -> pathlib.Path:
  """A run of the program, trained here; `run.json` says what a process of its own would."""
  main = main_of_run(facts_for(program))
  config.parse([], [*BASE, *bindings])
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(charts, "curves", lambda *arguments: "<svg></svg>")
    main(str(folder))
  facts = json.loads((folder / "run.json").read_text())
  (folder / "run.json").write_text(json.dumps({**facts, **facts_for(program)}))
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  return folder
