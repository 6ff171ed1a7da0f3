# %% [markdown]
# # Train and look
#
# This page is a notebook: every number below was computed when the page was built. You train a GAN
# on handwritten digits, look at its curves and pictures, load the run again and draw samples.
#
# Import Replicator before TensorFlow, so that the log of TensorFlow stays quiet. The runs of this
# page go into a folder that is thrown away; take `runs/` for your own.

# %%
import os
import tempfile

from replicator import load
from replicator.app import config
from experiments.sngan import train_sngan

os.chdir(tempfile.mkdtemp())

# %% [markdown]
# ## Train
#
# `config.parse` reads gin files, and then bindings that override them. `train_sngan` is the
# function that `python -m experiments.sngan` calls. It takes the folder of the run.
#
# While it trains, one line shows the progress. The curves and the newest picture appear below it,
# and are drawn again whenever the report is. 120 steps make no good digits; the file says 2,000.

# %%
config.parse(["sngan_digits.gin"], ["train.steps = 120", "train.log_every = 10",
                                    "train.eval_every = 60", "train.checkpoint_every = 60"])
train_sngan("runs/digits")

# %% [markdown]
# *Interrupt* would have saved the run and ended the cell with one line, `Preempted`. The same cell
# continues a run where it stopped. Here the run is at its end, so there is nothing left to train:

# %%
train_sngan("runs/digits")

# %% [markdown]
# A mistake is one line, which says what to write. In a notebook it ends the cell, too:

# %%
from replicator import UsageError

try:
  config.parse(["sngan_digits.gin"], ["train.stepz = 120"])
except UsageError as error:
  print(error)

# %% [markdown]
# ## Look
#
# The folder of the run has the report, the pictures, the configuration and the numbers:

# %%
sorted(os.listdir("runs/digits"))

# %%
import json

rows = [json.loads(line) for line in open("runs/digits/metrics.jsonl")]
for row in rows:
  if "eval/classifier_frechet_distance" in row:
    print(row["step"], round(row["eval/classifier_frechet_distance"], 1))

# %% [markdown]
# The distance falls as the samples become like the digits. This is the last picture: samples on the
# left; real digits on the right, each beside what the generator makes of the encoder's latent.

# %%
from PIL import Image

Image.open("runs/digits/samples/step-00000120.png")

# %% [markdown]
# ## Load the run, and draw samples
#
# `load` returns the trained step, an object with its networks as attributes. A run of a command is
# loaded by its folder alone. A run of a notebook has no program, so it needs the function that
# trained it. The bindings of a run must be those of the process, so they are read once more.

# %%
config.parse(["runs/digits/config.gin"], [])
gan = load("runs/digits", main=train_sngan)
gan

# %%
import tensorflow as tf

from models.vision.images.grid import image_grid

images = gan.generate(tf.random.stateless_normal([24, gan.latent_dim], seed=[1, 2]),
                      tf.zeros([24], tf.int32))
images.shape

# %%
Image.fromarray(image_grid(images, columns=8))

# %% [markdown]
# ## Step by step
#
# A step is plain code. Outside of `train` you can call it by hand, line by line, with a debugger or
# with `print`: it runs eagerly, as replica 0 of 1, and updates its networks.

# %%
batch = {"image": tf.zeros([8, 8, 8, 1], tf.uint8), "label": tf.zeros([8], tf.int32)}
{name: float(value) for name, value in gan(batch).items()}

# %% [markdown]
# `Replicator.run` compiles the same step and calls it on every replica. It returns what each of
# them returned, here those of the one device:

# %%
from replicator import Replicator

replica, = Replicator("one_device").run(gan, batch)
{name: float(value) for name, value in replica.items()}

# %% [markdown]
# Next: [your own step](your_own_step.py). [Runs and files](../reference/runs.md) has all that a run
# leaves behind, and [Work in a notebook](../howto/notebook.md) what differs from a program.
