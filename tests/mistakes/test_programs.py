"""The mistakes of a newcomer in a program, a command, a gin file and data: the line of each.

Every row runs as on the command line, in one process. `...` in a line stands for words of
TensorFlow or Keras, which differ between their versions.
"""

import pathlib
import runpy
import shutil

from experiments.cyclegan import train_cyclegan
from experiments.dmd2 import train_dmd2
from experiments.domain_adaptation import train_domain_adaptation
from experiments.maml import train_maml
from experiments.resnet import train_resnet
from experiments.self_supervision import train_self_supervision
from experiments.sngan import train_sngan
from replicator import app
from tests.mistakes.conftest import DIGITS, FAILED, USAGE, assert_line

import keras
import pytest

PROGRAM = '''import keras
import numpy as np
import tensorflow as tf

import replicator
from replicator import app, train, wrap_optimizer


def data(context):
  dataset = tf.data.Dataset.from_tensor_slices({"x": tf.zeros([12, 3]), "label": tf.range(12) % 4})
  dataset = dataset.repeat().batch(context.batch_size, drop_remainder=True)
  return dataset


class Block(keras.layers.Layer):

  def call(self, x):
    return x


class Step(tf.Module):

  def __init__(self):
    super().__init__()
    self.network = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
    self.optimizer = wrap_optimizer(keras.optimizers.Adam(), self.network.trainable_variables)
    self.blocks = [Block(), Block()]

  def loss(self, batch):
    return tf.reduce_mean(self.network(self.blocks[1](batch["x"])) ** 2)

  def __call__(self, batch):
    return {"loss": self.optimizer.minimize(self.loss, batch)}


app.run(lambda workdir: train(Step, data, workdir=workdir))
'''
SAME = "    return x\n"
RETURN = '    return {"loss": self.optimizer.minimize(self.loss, batch)}\n'
# The lines of a step that is written in place of the one above; it begins in line 34.
TAPE = "    with tf.GradientTape() as tape:\n      loss = self.loss(batch)\n"
VARIABLES = "    variables = self.network.trainable_variables\n"
APPLY = "    self.optimizer.apply(tape.gradient(loss, variables), variables)\n"

CODE = [  # What stands in the program in place of what, and the line.
    # Shapes, names and types.
    (SAME, "    return x + tf.zeros([8, 7])\n",
     "mine.py:18: ValueError: Dimensions must be equal, but are 3 and 7 ... layer blocks/1)"),
    (SAME, "    return tf.concat([x, x], 1)\n",
     "mine.py:30: ValueError: ... to have value 3, ... (8, 6) (in the layer network/dense)"),
    ('batch["x"]', 'batch["image"]', "mine.py:30: KeyError: 'image'. 'batch' has: x, label"),
    ("self.network(", "self.netwrok(",
     "mine.py:30: AttributeError: ... no attribute 'netwrok'. Did you mean 'network'?"),
    (SAME, "    return x * tf.range(3)\n",
     "mine.py:18: TypeError: Input 'y' of 'Mul' Op has type int32 ... (in the layer blocks/1)"),
    # A compiled step is no Python.
    (RETURN, "    loss = self.loss(batch)\n    if loss > 1.0:\n      loss = 1.0\n",
     "mine.py:34: OperatorNotAllowedInGraphError: ...; use tf.where or tf.cond"),
    (RETURN, '    return {"loss": self.loss(batch) / len(batch["x"])}\n',
     "mine.py:33: TypeError: len is not well defined for a symbolic Tensor; use x.shape[0]"),
    (RETURN, '    return {"loss": sum(x for x in batch["x"])}\n',
     "mine.py:33: OperatorNotAllowedInGraphError: ... use tf.unstack(x), or loop over ..."),
    (RETURN, '    return {"loss": self.loss(batch).numpy()}\n',
     "mine.py:33: AttributeError: ... has no value yet; compute with tf, or run with --eager"),
    (RETURN, '    return {"loss": np.mean(batch["x"])}\n',
     "mine.py:33: NotImplementedError: ... has no value yet; compute with tf instead of NumPy"),
    (RETURN, '    return {"loss": float(self.loss(batch))}\n',
     "mine.py:33: TypeError: ...; a tensor of a compiled step has no value yet; use tf.cast"),
    (RETURN, '    return {"loss": tf.Variable(0.0) + self.loss(batch)}\n',
     "mine.py:33: ValueError: ...; create variables in the constructor of the step, ..."),
    # What a step returns, and takes.
    ("__call__(self, batch)", "__call__(self)",
     "the step is called with a batch, but takes no argument; write def __call__(...), ..."),
    ("train(Step, data, ", "train(Step, ",
     "the step takes an argument, but train has no inputs to call it with; pass ..."),
    ("train(Step, ", "train(lambda: Step, ",
     "train: make_step returned the class Step; it must return the step, ..."),
    # Gradients and optimizers.
    (RETURN, f"{TAPE}{VARIABLES}    first = tape.gradient(loss, variables)\n{APPLY}",
     "mine.py:37: RuntimeError: A non-persistent GradientTape can only be used ..."),
    (RETURN, f"{TAPE}{VARIABLES}    self.optimizer.apply_gradients(zip(variables, variables))\n",
     "mine.py:36: AttributeError: ... 'apply_gradients'; use apply(gradients, ..."),
    ("    self.blocks = [Block(), Block()]\n", "    self.blocks = [0, keras.layers.Dense(3)]\n",
     "the step creates variables in its first call, such as 'blocks/1/000' (...): ..."),
    (RETURN, f"    self.network.set_weights(self.network.get_weights())\n{RETURN}",
     "mine.py:33: NotImplementedError: ...; ... use set_weights(other.weights) ..."),
    ("self.optimizer.minimize(self.loss, batch)}", "self.network.predict(batch['x'])}",
     "mine.py:33: RuntimeError: ...; a step already runs on every replica; call the network ..."),
    # Data and numbers.
    ("** 2)", "/ 0.0)", "step 1: loss is nan (and 1 more); its batch and numbers are in "
                        "w/failures/step-00000001; there is no earlier checkpoint"),
]


@pytest.fixture
def run_code(run, folder):
  """A function that runs the program above with a replacement; returns status and stderr."""

  def run_code(old: str, new: str, *params: str) -> tuple[int, str]:
    assert old in PROGRAM
    (folder / "mine.py").write_text(PROGRAM.replace(old, new))
    keras.backend.clear_session()  # Names of layers and optimizers as in a new process.
    main = app.main_of(lambda: runpy.run_path("mine.py", run_name="__main__"))
    settings = ["train.steps = 2", "train.global_batch_size = 8", *params]
    shutil.rmtree("w", ignore_errors=True)
    return run(main, [*(f"--gin_param={setting}" for setting in settings), "--workdir=w"])

  return run_code


@pytest.mark.parametrize("old, new, line", CODE, ids=lambda value: value.strip()[:40])
def test_code(old, new, line, run_code):
  found = run_code(old, new)
  status = USAGE if line.startswith(("the step", "train:")) else FAILED
  if line.startswith("mine.py"):  # Not found by the run itself.
    line += "; the traceback is in w/traceback.txt"
    assert pathlib.Path("w/traceback.txt").read_text().startswith("Traceback")
  assert_line(found, status, line)


def test_a_variable_of_a_step_on_several_replicas(run_code):
  found = run_code(RETURN, "    return {'loss': tf.Variable(0.0) + self.loss(batch)}\n",
                   "Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2")
  assert_line(found, FAILED, "mine.py:36: UnliftableError: ...; a variable is created in the step; "
              "create variables in its constructor, as its attributes; the traceback is in ...")


# ---- The command line ---------------------------------------------------------------------------

FLAGS = [  # What was typed after `python -m experiments.sngan`, and the line.
    ([], "the configuration must set: train.steps; write --gin_file=F, where F is one of "
         "configs/sngan_cifar10.gin, configs/sngan_cifar10_small.gin, ..."),
    ([DIGITS, "--steps=10"], "command line: unrecognized arguments: --steps=10. A setting is "
                             'written as --gin_param="owner.steps = 10"'),
    ([DIGITS, "--workdir="],
     "command line: argument --workdir: is empty; give the name of a folder."),
    ([DIGITS, "--workdir=a_file"], "--workdir=a_file: is a file; choose a folder"),
    ([DIGITS, "--diff=runs/nowhere"], "--diff=runs/nowhere: ...: no such file; give the ..."),
]


@pytest.mark.parametrize("words, line", FLAGS, ids=lambda value: " ".join(value)[:50])
def test_flags(words, line, run):
  assert_line(run(train_sngan, words), USAGE, line)


# ---- gin ----------------------------------------------------------------------------------------

# Those that depend on the names of an experiment; `test_config` of the application has the others.
SETTINGS = [  # What was written into a gin file, and the line.
    ("adam/generator.learning_rate = 1e-4", "nothing configurable is called 'generator'. Scopes "
                                            "come first: write generator/adam.learning_rate"),
    ("generator/learning_rate = 1e-4",
     "the macro generator/learning_rate is never used. Did you mean "
     "generator/adam.learning_rate..."),
    ("generator/SNGAN.loss = @wgan",
     "nothing configurable is called 'wgan'. Write one of: @hinge, @least_squares, ..."),
    ("train_sngan.data = @Pictures",
     "nothing configurable is called 'Pictures'. Write one of: @Augmented, @Digits, ..."),
]


@pytest.mark.parametrize("setting, line", SETTINGS, ids=lambda value: value[:40])
def test_gin(setting, line, run, folder):
  (folder / "mine.gin").write_text(f"include 'configs/sngan_digits.gin'\n\n{setting}\n")
  assert_line(run(train_sngan, ["--gin_file=mine.gin"]), USAGE, f"mine.gin:3: {line}")


# ---- Values -------------------------------------------------------------------------------------

OTHER = ": SGD has a weight_decay of 0.0001 as well; leave out one of the two"
VALUES = [  # The program, the gin file, bindings, and the line, or what follows the binding in it.
    (train_maml, "maml_sinusoids", ["MAML.inner_rate = 0.0"], ": must be positive"),
    (train_maml, "maml_sinusoids", ["MAML.inner_steps = 0"], ": must be at least 1"),
    (train_maml, "maml_sinusoids", ["train_maml.new_tasks = 0"], ": must be at least 1"),
    (train_domain_adaptation, "domain_adaptation_digits", ["DomainAdaptation.adaptation_start = 0"],
     ": must be at least 1"),
    (train_domain_adaptation, "domain_adaptation_digits",
     ["train_domain_adaptation.validation_split = 1.0"],
     "validation_split = 1.0: holds out 1797 of 1797 images, ...; use a fraction such as 0.2"),
    (train_dmd2, "dmd2_gaussians", ["DMD2.first = 0.99"],
     " and DMD2.last = 0.98: must satisfy 0 <= first < last <= 1"),
    (train_dmd2, "dmd2_gaussians", ["DenoisingMLP.units = 0"], ": must be at least 1"),
    (train_cyclegan, "cyclegan_shapes16", ["CycleGAN.cycle_weight = -1.0"],
     ": must not be negative"),
    (train_cyclegan, "cyclegan_shapes16", ["CycleGAN.pool_size = 0"], ": must be at least 1"),
    (train_cyclegan, "cyclegan_shapes16", ["outlined/Shapes.resolution = 12"],
     "train_cyclegan.a has image_shape (16, 16, 3), and train_cyclegan.b (12, 12, 3): they must "
     "be the same"),
    (train_cyclegan, "cyclegan_shapes16", ["outlined/Shapes.size = 9"],
     "train_cyclegan.a has size ..., and train_cyclegan.b 9: they must be the same"),
    (train_resnet, "resnet_digits", ["ImageClassifier.label_smoothing = 1.0"],
     ": must be in [0, 1)"),
    (train_resnet, "resnet_digits", ["sgd.weight_decay = 1e-4"],
     f"ImageClassifier.weight_decay = 0.0001{OTHER}"),
    (train_resnet, "resnet_digits", ["ImageClassifier.optimizer = @LARS",
                                     "LARS.learning_rate = 10.0",
                                     "LARS.weight_decay = 1e-4"],
     f"ImageClassifier.weight_decay = 0.0001{OTHER.replace('SGD', 'LARS')}"),
    (train_self_supervision, "self_supervision_digits",
     ["wrap_optimizer.ema_decay = None", "SelfSupervision.loss = @BYOL"],
     ": the teacher of BYOL is the network with averaged weights; write 0.99, ..."),
    (train_self_supervision, "self_supervision_digits", ["train_self_supervision.data = @Digits"],
     "train_self_supervision.data: ..."),
    (train_sngan, "sngan_digits", ["train_sngan.data = @Shapes", "Shapes.resolution = 20"],
     "SNGANGenerator.resolution = 20: SN-GAN has no networks of this size; use one of 8, ..."),
]


@pytest.mark.parametrize("program, file, bindings, line", VALUES,
                         ids=[bindings[-1][:40] for _, _, bindings, _ in VALUES])
def test_values(program, file, bindings, line, run, tmp_path):
  words = [f"--gin_file=configs/{file}.gin", f"--workdir={tmp_path}/run",
           *(f"--gin_param={binding}" for binding in bindings)]
  assert_line(run(program, words), USAGE, line if line[0] not in ": " else bindings[0] + line)
  assert not (tmp_path / "run" / "classifier").exists()  # Refused before any work.
