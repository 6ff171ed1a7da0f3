# %% [markdown]
# # One device to many
#
# This page runs the same step on one device, on two replicas of this machine's CPU and in two
# processes, and reads the configuration for a TPU. A gin file names the strategy; the step does not
# change. Everything here ran on CPUs.

# %%
import os
import tempfile

os.chdir(tempfile.mkdtemp())
os.environ["FORCE_COLOR"] = ""  # Commands print plain lines, not the live line of a terminal.

# %% [markdown]
# ## A program
#
# The step fits a line to noisy points. `replicator.random` draws the same points for the examples
# of the global batch, however many replicas share them.

# %%
# %%writefile line.py
from replicator import app, batch_size, random, train, wrap_optimizer
import keras
import tensorflow as tf


class Line(tf.Module):
  """Learns y = 3 x + 1 from noisy points."""

  def __init__(self):
    super().__init__()
    self.network = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    self.optimizer = wrap_optimizer(keras.optimizers.SGD(0.1), self.network.trainable_variables)

  def __call__(self):  # Runs once per replica.
    x = random.normal("x", [batch_size(), 1])
    y = 3 * x + 1 + random.normal("noise", x.shape, stddev=0.1)
    loss = lambda: tf.reduce_mean(tf.square(self.network(x) - y))
    return {"loss": self.optimizer.minimize(loss)}


if __name__ == "__main__":
  app.run(lambda workdir: train(Line, workdir=workdir))

# %% [markdown]
# The settings that all runs share, in float64, so that rounding does not hide a mistake:

# %%
# %%writefile line.gin
train.steps = 100
train.log_every = 10
train.eval_every = 0
train.precision = 'float64'

# %% [markdown]
# ## One device, and two replicas
#
# A notebook can do both, one after the other. `Replicator.logical_cpus` divides the CPU into
# devices. That is possible only before TensorFlow has started, so the first run asks for both.

# %%
from replicator.app import config
from replicator import train
from line import Line

for strategy in ("one_device", "mirrored"):
  config.parse(["line.gin"], [f"Replicator.strategy = '{strategy}'",
                              "Replicator.logical_cpus = 2"])
  train(Line, workdir=f"runs/{strategy}")

# %% [markdown]
# A setting that cannot change in a running process says so:

# %%
from replicator import UsageError

config.parse(["line.gin"], ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 4"])
try:
  train(Line, workdir="runs/four")
except UsageError as error:
  print(str(error).splitlines()[0])

# %% [markdown]
# ## Two processes
#
# A cluster consists of processes, so it is started by a command and not in a cell. The launcher
# starts two on this machine. On several machines a scheduler starts them, or the launcher by ssh:
# [A cluster](../howto/clusters.md).

# %%
# !replicator launch --workers=2 -- python line.py --gin_file=line.gin \
#     --gin_file=strategies/multi_worker_mirrored.gin --workdir=runs/processes

# %% [markdown]
# ## The same losses

# %%
import json


def losses_of(run):
  return [json.loads(line)["loss"] for line in open(f"runs/{run}/metrics.jsonl")]


one = losses_of("one_device")
for run in ("mirrored", "processes"):
  difference = max(abs(a - b) / abs(a) for a, b in zip(one, losses_of(run), strict=True))
  print(f"{run}: largest relative difference of a loss {difference:.1e}")
  assert difference < 1e-9

# %% [markdown]
# ## A TPU
#
# `strategies/tpu.gin` names the strategy of a TPU. There is none here, and none was ever used.
# `--explain` reads the configuration without making the strategy, traces the step, and prints each
# setting with its place:

# %%
# !python line.py --gin_file=line.gin --gin_file=strategies/tpu.gin \
#     --gin_param="train.log_every = 50" --explain
assert _exit_code == 0

# %% [markdown]
# On a machine with GPUs, `--gin_file=strategies/mirrored.gin` makes a replica of each. [What runs
# where](../reference/capabilities.md) lists which parts run under which strategy, and [How a step
# scales](../explain/scaling.md) predicts the speed before you rent a machine.
