"""The mistakes of a newcomer, and the one line that each gets.

Every row runs as on the command line, in one process. `...` in a line stands for words of
TensorFlow or Keras, which differ between their versions.
"""

import pathlib
import re
import runpy
import shutil
import sys
import zipfile

import keras
import numpy as np
import pytest
from PIL import Image

from experiments.sngan import sngan
from models.vision.convert import convert
from models.vision.folder import list_folder
from replicator import app
from replicator.console import quiet

ROOT = pathlib.Path(__file__).parents[1]
DIGITS = "--gin_file=configs/sngan_digits.gin"
FOLDER = "--gin_file=configs/sngan_cifar10.gin"
USAGE, FAILED = 2, 1  # Exit statuses.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A working directory with the configs, and data of the wrong kinds."""
  folder = tmp_path_factory.mktemp("newcomer")
  shutil.copytree(ROOT / "configs", folder / "configs")
  (folder / "flat").mkdir()
  for name in ("a.png", "b.png"):
    Image.new("RGB", (32, 32)).save(folder / "flat" / name)
  (folder / "empty" / "cats").mkdir(parents=True)
  (folder / "torn" / "cats").mkdir(parents=True)
  (folder / "torn" / "cats" / "a.jpg").write_bytes(b"not an image")
  with zipfile.ZipFile(folder / "images.zip", "w") as archive:
    archive.write(folder / "flat" / "a.png")
  (folder / "a_file").write_text("")
  make_broken_data(folder)
  return folder


def make_broken_data(folder):
  """Archives, labels and shards that do not fit; each ends a run with one line."""
  (folder / "text.zip").write_text("no archive")
  (folder / "torn.zip").write_bytes((folder / "images.zip").read_bytes()[:-30])
  np.savez_compressed(folder / "packed.npz", images=np.zeros([2, 32, 32, 3], np.uint8))
  labeled = folder / "labeled"
  labeled.mkdir()
  for number in range(1000):
    shutil.copyfile(folder / "flat" / "a.png", labeled / f"{number:03}.png")
  rows = [f"{number:03}.png,{number % 7}\n" for number in range(1000)]
  (labeled / "all.csv").write_text("".join(rows))
  (labeled / "999.csv").write_text("".join(rows[:7] + rows[8:]))
  (labeled / "twice.csv").write_text("".join([*rows, rows[7]]))
  convert(list_folder(str(labeled), "all.csv"), str(folder / "swapped"), 2)
  shutil.copytree(folder / "swapped", folder / "changed")
  first, second = sorted((folder / "swapped").glob("*.npz"))
  shutil.copyfile(first, second)
  shard = folder / "changed" / f"{second.stem}.tfrecord"
  shard.write_bytes(shard.read_bytes()[:-1] + b"!")


@pytest.fixture
def run(folder, monkeypatch, capfd, restored):
  """A function that runs a program with words of a command line; returns status and stderr."""
  monkeypatch.setattr(quiet, "drop_native_log", lambda: None)
  monkeypatch.setattr(quiet, "finish", lambda: None)
  monkeypatch.chdir(folder)
  monkeypatch.setattr("sys.argv", ["sngan.py"])
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # The file's name counts.
  monkeypatch.setenv("HOME", str(folder))

  def run(main, words: list[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
      app.run(main, words)
    return end.value.code, capfd.readouterr().err

  return run


def assert_line(found: tuple[int, str], status: int, line: str) -> None:
  """The error is exactly one line; `...` stands for any words."""
  code, err = found
  assert err.startswith("error: ") and err.count("\n") == 1, err
  pattern = ".+".join(map(re.escape, line.split("...")))
  assert re.fullmatch(f"error: {pattern}\n", err), f"{err}\n{line}"
  assert code == status


# ---- The command line ---------------------------------------------------------------------------

FLAGS = [  # What was typed after `python -m experiments.sngan`, and the line.
    ([], "the configuration must set: train.steps; write --gin_file=F, where F is one of "
         "configs/sngan.gin, configs/sngan_cifar10.gin, configs/sngan_digits.gin, "
         "configs/sngan_imagenet128.gin, configs/sngan_shapes32.gin, "
         "configs/sngan_stacked_digits.gin"),
    (["configs/sngan_digits.gin"],
     "command line: unrecognized arguments: configs/sngan_digits.gin. Write "
     "--gin_file=configs/sngan_digits.gin"),
    (["--gin_file=sngan_digits.gin"],
     "--gin_file=sngan_digits.gin: no such file. Did you mean 'configs/sngan_digits.gin'?"),
    (["--gin_file=configs/sngan_digit.gin"],
     "--gin_file=configs/sngan_digit.gin: no such file. Did you mean 'configs/sngan_digits.gin'?"),
    (["--gin-file=configs/sngan_digits.gin"],
     "command line: unrecognized arguments: --gin-file=configs/sngan_digits.gin. Did you mean "
     "'--gin_file'?"),
    (["--config=configs/sngan_digits.gin"],
     "command line: unrecognized arguments: --config=configs/sngan_digits.gin. A setting is "
     'written as --gin_param="owner.config = configs/sngan_digits.gin"'),
    ([DIGITS, "train.steps=10"],
     'command line: unrecognized arguments: train.steps=10. Write --gin_param="train.steps = 10"'),
    ([DIGITS, "--train.steps=10"],
     "command line: unrecognized arguments: --train.steps=10. Write "
     '--gin_param="train.steps = 10"'),
    ([DIGITS, "--steps=10"],
     "command line: unrecognized arguments: --steps=10. A setting is written as "
     '--gin_param="owner.steps = 10"'),
    ([DIGITS, "--gin_param=train.steps"],
     "--gin_param: not valid gin: train.steps (write NAME = VALUE)"),
    ([DIGITS, "--workdir="],
     "command line: argument --workdir: is empty; write the name of a folder."),
    ([DIGITS, "--workdir=a_file"], "--workdir=a_file: is a file; write the name of a folder"),
    ([DIGITS, "--workdir"], "command line: argument --workdir: expected one argument."),
    ([DIGITS, "--verbose"], "command line: unrecognized arguments: --verbose."),
    ([DIGITS, "--diff=runs/nowhere"],
     "--diff=runs/nowhere: runs/nowhere: no such file; write the workdir of a run"),
]


@pytest.mark.parametrize("words, line", FLAGS, ids=lambda value: " ".join(value)[:50])
def test_flags(words, line, run):
  assert_line(run(sngan, words), USAGE, line)


def test_the_home_folder_is_expanded(run, folder):
  words = ["--gin_file=~/configs/sngan_digits.gin", "--workdir=~/a_file"]
  assert_line(run(sngan, words), USAGE,
              f"--workdir={folder}/a_file: is a file; write the name of a folder")


# ---- gin ----------------------------------------------------------------------------------------

SETTINGS = [  # What was written into a gin file, and the line.
    ("adam/generator.learning_rate = 1e-4",
     "nothing configurable is called 'generator'. Scopes come first: write "
     "generator/adam.learning_rate"),
    ("generator.adam.learning_rate = 1e-4",
     "nothing configurable is called 'generator.adam'. Scopes come first: write "
     "generator/adam.learning_rate"),
    ("generator/learning_rate = 1e-4",
     "the macro generator/learning_rate is never used. Did you mean "
     "generator/LinearDecay.learning_rate or generator/adam.learning_rate?"),
    ("adam.lr = 1e-4",
     "'adam' has no parameter 'lr'. Did you mean 'learning_rate'? It has: learning_rate, ..."),
    ("adam.learning_rate = '1e-4'",
     "adam.learning_rate = '1e-4': must be float or LearningRateSchedule, not str. Write 1e-4 "
     "without quotes"),
    ("Adam.learning_rate = 1e-4", "nothing configurable is called 'Adam'. Did you mean 'adam'?"),
    ("SNGAN.loss = @wgan",
     "nothing configurable is called 'wgan'. Write one of: @hinge, @least_squares, @minimax, "
     "@modified, @relativistic, @wasserstein"),
    ("generator/SNGAN.loss = @wgan",
     "nothing configurable is called 'wgan'. Write one of: @hinge, @least_squares, @minimax, "
     "@modified, @relativistic, @wasserstein"),
    ("SNGAN.loss = hinge",
     "not valid gin: SNGAN.loss = hinge (a string needs quotes, a function @, a macro %)"),
    ("SNGAN.loss = 'hinge'",
     "SNGAN.loss = 'hinge': must be a function (@name), not str. Write @hinge"),
    ("SNGAN.optimizer = @adam()",
     "SNGAN.optimizer = @adam(): must be a function (@name), not what it returns. Write @adam"),
    ("sngan.data = @Mnist",
     "nothing configurable is called 'Mnist'. Write one of: @Augmented, @Digits, @HuggingFace, "
     "@ImageArrays, @ImageFolder, @ImageZip, @Shapes, @StackedDigits, @TFDS, @TFRecords"),
    ("SNGAN.bigan = true", "not valid gin: SNGAN.bigan = true (write True)"),
    ("SNGAN.bigan = 1", "SNGAN.bigan = 1: must be bool, not int"),
    ("train.steps = 1e4", "train.steps = 10000.0: must be int, not float. Write 10000"),
    ("train.stepz = 3",
     "'train' has no parameter 'stepz'. Did you mean 'steps'? It has: steps, global_batch_size, "
     "seed, precision, deterministic, steps_per_call, log_every, eval_every, checkpoint_every, "
     "trackers, start_from"),
    ("train.batch_size = 64",
     "'train' has no parameter 'batch_size'. Did you mean 'global_batch_size'? It has: ..."),
    ("steps = 100", "the macro steps is never used. Did you mean train.steps?"),
    ("train.workdir = 'here'",
     "'train' gets its 'workdir' from the program; it cannot be set here"),
    ("include 'sngan.gin'",
     "includes 'sngan.gin', and there is no such file, neither beside this one nor in the working "
     "directory"),
]


@pytest.mark.parametrize("setting, line", SETTINGS, ids=lambda value: value[:40])
def test_gin(setting, line, run, folder):
  (folder / "mine.gin").write_text(f"include 'configs/sngan_digits.gin'\n\n{setting}\n")
  assert_line(run(sngan, ["--gin_file=mine.gin"]), USAGE, f"mine.gin:3: {line}")


# ---- Values, devices and data -------------------------------------------------------------------

MIRRORED = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 4"]
VALUES = [  # Further gin files, parameters, and the line.
    ([], ["Replicator.strategy = 'mirored'"],
     "Replicator.strategy = 'mirored': no such strategy. Did you mean 'mirrored'? Write one of: "
     "default, one_device, mirrored, multi_worker_mirrored, central_storage, parameter_server, "
     "tpu"),
    ([], [*MIRRORED, "train.global_batch_size = 65"],
     "train.global_batch_size = 65: does not divide by the 4 replicas; write 64 or 68"),
    ([], ["Replicator.strategy = 'multi_worker_mirrored'"],
     "Replicator.strategy = 'multi_worker_mirrored': the environment has no TF_CONFIG; start all "
     "processes with: python -m replicator.launch --workers=2 -- COMMAND"),
    ([], ["Replicator.jit_compile = True", "Replicator.strategy = 'parameter_server'"],
     "Replicator.jit_compile = True: not with 'parameter_server': it is for synchronous replicas; "
     "drop one of the two"),
    ([], ["train.precision = 'float16'"],
     "train.precision = 'float16': no such precision. Did you mean 'float64'? Write one of: "
     "float32, float64, mixed_bfloat16, mixed_float16"),
    ([], ["train.steps = 0"], "train.steps = 0: must be a whole number of at least 1"),
    ([], ["train.steps_per_call = 7"],
     "train.steps = ...: must be a multiple of train.steps_per_call = 7"),
    ([], ["Guard.action = 'rollback'"],
     "Guard.action = 'rollback': no such action. Did you mean 'roll_back'? Write one of: stop, "
     "warn, roll_back, off"),
    ([], ["Guard.limits = {'loss': 'high'}"],
     "--gin_param: Guard.limits = {'loss': 'high'}: must be Mapping[str, float] or None, not one "
     "with these elements"),
    ([], ["SNGAN.latent_dim = 0"], "SNGAN.latent_dim = 0: must be at least 1"),
    ([], ["sngan.data = @Shapes", "Shapes.resolution = 20"],
     "Generator.resolution = 20: SN-GAN has no networks of this size; write one of 8, 16, 32, 64, "
     "128"),
    ([FOLDER], ["ImageFolder.path = 'nowhere'"],
     "ImageFolder.path = 'nowhere': no such folder. Write the path of a folder with one sub-folder "
     "of images per class, such as cats/001.jpg and dogs/001.jpg."),
    ([FOLDER], ["ImageFolder.path = 'flat'"],
     "ImageFolder.path = 'flat': no image in any sub-folder, but 2 in the folder itself. Expected "
     "one sub-folder of images per class, such as cats/001.jpg and dogs/001.jpg; images without "
     "classes may all be in one sub-folder, such as flat/all."),
    ([FOLDER], ["ImageFolder.path = '~/flat'"],  # The home directory is expanded.
     "ImageFolder.path = '~/flat': no image in any sub-folder, but 2 in the folder itself. ..."),
    ([FOLDER], ["ImageFolder.path = 'images.zip'"],
     "ImageFolder.path = 'images.zip': is a file. Use ImageZip if it is a ZIP archive, or write "
     "the path of a folder with one sub-folder of images per class, such as cats/001.jpg and "
     "dogs/001.jpg."),
    ([FOLDER], ["ImageFolder.path = 'torn'"],
     "torn/cats/a.jpg cannot be read as an image (...). To skip such files, set "
     "ImageFolder.on_error = 'skip'."),
    ([FOLDER], ["ImageFolder.path = 'labeled'", "ImageFolder.labels = '999.csv'"],
     "labeled/999.csv: has labels for 999 of 1,000 images; 007.png has none. Add it, or remove the "
     "image"),
    ([FOLDER], ["ImageFolder.path = 'labeled'", "ImageFolder.labels = 'twice.csv'"],
     "labeled/twice.csv: has more than one label for 007.png; leave one"),
    ([], ["sngan.data = @ImageZip", "ImageZip.resolution = 8", "ImageZip.path = 'text.zip'"],
     "ImageZip.path = 'text.zip': is not a ZIP archive (...); copy it again"),
    ([], ["sngan.data = @ImageZip", "ImageZip.resolution = 8", "ImageZip.path = 'torn.zip'"],
     "ImageZip.path = 'torn.zip': is a truncated ZIP archive, without its end (...); copy it "
     "again"),
    ([], ["sngan.data = @ImageArrays", "ImageArrays.path = 'packed.npz'"],
     "packed.npz: images is compressed, and cannot be read in parts; write the archive with "
     "numpy.savez, not numpy.savez_compressed"),
    ([], ["sngan.data = @TFRecords", "TFRecords.resolution = 8", "TFRecords.path = 'swapped'"],
     "swapped/images-00001-of-00002.tfrecord: images-00001-of-00002.npz is the index of another "
     "file, or the file changed since it was indexed; copy it again, or convert again"),
    ([], ["sngan.data = @TFRecords", "TFRecords.resolution = 8", "TFRecords.path = 'changed'"],
     "changed/images-00001-of-00002.tfrecord: images-00001-of-00002.npz is the index of another "
     "file, or the file changed since it was indexed; copy it again, or convert again"),
]


@pytest.mark.parametrize("files, params, line", VALUES, ids=lambda value: str(value)[:40])
def test_values(files, params, line, run, tmp_path):
  words = [*(files or [DIGITS]), *(f"--gin_param={param}" for param in params)]
  assert_line(run(sngan, [*words, f"--workdir={tmp_path}/run"]), USAGE, line)
  assert not (tmp_path / "run" / "classifier").exists()  # Refused before any work.


# ---- A program of one's own ---------------------------------------------------------------------

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
RETURN = '    return {"loss": self.optimizer.minimize(self.loss, batch)}\n'
# The lines of a step that is written in place of the one above; it begins in line 34.
TAPE = "    with tf.GradientTape() as tape:\n      loss = self.loss(batch)\n"
VARIABLES = "    variables = self.network.trainable_variables\n"
APPLY = "    self.optimizer.apply(tape.gradient(loss, variables), variables)\n"

CODE = [  # What stands in the program in place of what, the exit status, and the line.
    # Shapes, names and types.
    ("    return x\n", "    return x + tf.zeros([8, 7])\n", FAILED,
     "mine.py:18: ValueError: Dimensions must be equal, but are 3 and 7 with input shapes: [8,3], "
     "[8,7] (in the layer blocks/1)"),
    ("    return x\n", "    return tf.concat([x, x], 1)\n", FAILED,
     "mine.py:30: ValueError: Input 0 ... incompatible with the layer: expected axis -1 of input "
     "shape to have value 3, but received input with shape (8, 6) (in the layer network/dense)"),
    ("    return x\n", "    return tf.matmul(x, tf.zeros([5, 3]))\n", FAILED,
     "mine.py:18: ValueError: Dimensions must be equal, but are 3 and 5 with input shapes: [8,3], "
     "[5,3] (in the layer blocks/1)"),
    ("    return x\n", "    return replicator.all_sum(tf.constant('a'))\n", USAGE,
     "mine.py:18: all_sum: tensors of string cannot travel ... (in the layer blocks/1)"),
    ('batch["x"]', 'batch["image"]', FAILED,
     "mine.py:30: KeyError: 'image'. 'batch' has: x, label"),
    ("self.network(", "self.netwrok(", FAILED,
     "mine.py:30: AttributeError: 'Step' object has no attribute 'netwrok'. Did you mean "
     "'network'?"),
    ("tf.reduce_mean(", "tf.reduce_meen(", FAILED,
     "mine.py:30: AttributeError: ... has no attribute 'reduce_meen'. Did you mean 'reduce_mean'?"),
    ("    return x\n", "    return X\n", FAILED,
     "mine.py:18: NameError: name 'X' is not defined. Did you mean 'x'? (in the layer blocks/1)"),
    ("    return x\n", "    return x * tf.range(3)\n", FAILED,
     "mine.py:18: TypeError: Input 'y' of 'Mul' Op has type int32 that does not match type float32 "
     "of argument 'x' (in the layer blocks/1)"),
    # A compiled step is no Python.
    (RETURN, "    loss = self.loss(batch)\n    if loss > 1.0:\n      loss = 1.0\n", FAILED,
     "mine.py:34: OperatorNotAllowedInGraphError: Using a symbolic `tf.Tensor` as a Python `bool` "
     "is not allowed; a compiled step has no Python `if` on tensors; write tf.where or tf.cond"),
    (RETURN, '    return {"loss": self.loss(batch) / len(batch["x"])}\n', FAILED,
     "mine.py:33: TypeError: len is not well defined for a symbolic Tensor; write x.shape[0]"),
    (RETURN, '    return {"loss": sum(x for x in batch["x"])}\n', FAILED,
     "mine.py:33: OperatorNotAllowedInGraphError: Iterating over a symbolic `tf.Tensor` is not "
     "allowed; write tf.unstack(x), or loop over range(x.shape[0])"),
    (RETURN, '    return {"loss": self.loss(batch).numpy()}\n', FAILED,
     "mine.py:33: AttributeError: 'SymbolicTensor' object has no attribute 'numpy'; a tensor of a "
     "compiled step has no value yet; compute with tf, or run with --eager"),
    (RETURN, '    return {"loss": np.mean(batch["x"])}\n', FAILED,
     "mine.py:33: NotImplementedError: Cannot convert a symbolic tf.Tensor (...) to a numpy array; "
     "a tensor of a compiled step has no value yet; compute with tf instead of NumPy"),
    (RETURN, '    return {"loss": float(self.loss(batch))}\n', FAILED,
     "mine.py:33: TypeError: float() argument must be a string or a real number, not "
     "'SymbolicTensor'; a tensor of a compiled step has no value yet; write tf.cast"),
    (RETURN, '    return {"loss": tf.Variable(0.0) + self.loss(batch)}\n', FAILED,
     "mine.py:33: ValueError: tf.function only supports singleton tf.Variables created on the "
     "first call; make variables in the constructor of the step, as its attributes"),
    # What a step returns, and takes.
    (RETURN, "    self.optimizer.minimize(self.loss, batch)\n", USAGE,
     "the step must return a non-empty dict of scalars to log, such as {'loss': loss}, not "
     "NoneType"),
    (RETURN, "    return self.optimizer.minimize(self.loss, batch)\n", USAGE,
     "the step must return a non-empty dict of scalars to log, such as {'loss': loss}, not "
     "SymbolicTensor"),
    (RETURN, '    return {"loss": self.network(batch["x"])}\n', USAGE,
     "the step returned 'loss' of shape (8, 4); return a scalar, such as its tf.reduce_mean over "
     "the replica's examples"),
    (RETURN, '    return {"step": self.optimizer.minimize(self.loss, batch)}\n', USAGE,
     "the step returned 'step', which is a column of the log already; call it something else"),
    ("__call__(self, batch)", "__call__(self)", USAGE,
     "the step is called with a batch, and takes none; write def __call__(self, batch), or give "
     "train no inputs"),
    ("train(Step, data, ", "train(Step, ", USAGE,
     "the step takes an argument, and train has no inputs to call it with; give train inputs, or "
     "write def __call__(self)"),
    ("train(Step, ", "train(lambda: Step, ", USAGE,
     "train: make_step returned the class Step; it must return the step, a function or a tf.Module "
     "that is called with a batch"),
    # Gradients and optimizers.
    (RETURN, f"{TAPE}{VARIABLES}    variables = variables[:1]\n{APPLY}", USAGE,
     "mine.py:37: adam.apply: given other variables than the 2 it was wrapped with; an optimizer "
     "owns its variables, in the order of wrap_optimizer(optimizer, variables)"),
    (RETURN, f"{VARIABLES}    loss = self.loss(batch)\n"
             f"    with tf.GradientTape() as tape:\n      pass\n{APPLY}", USAGE,
     "mine.py:37: adam.apply: all 2 gradients are None; the loss does not depend on "
     "sequential/dense/kernel or the others, or it (or its scale_loss) was computed outside the "
     "tape"),
    ('self.network(self.blocks[1](batch["x"]))', 'batch["x"]', USAGE,
     "mine.py:33: adam.apply: all 2 gradients are None; the loss does not depend on "
     "sequential/dense/kernel or the others, or it (or its scale_loss) was computed outside the "
     "tape"),
    (RETURN, f"{TAPE}{VARIABLES}    first = tape.gradient(loss, variables)\n{APPLY}", FAILED,
     "mine.py:37: RuntimeError: A non-persistent GradientTape can only be used to compute one set "
     "of gradients (or jacobians)"),
    (RETURN, f"{TAPE}{VARIABLES}    self.optimizer.apply_gradients(zip(variables, variables))\n",
     FAILED, "mine.py:36: AttributeError: 'Optimizer' object has no attribute 'apply_gradients'; "
             "write apply(gradients, variables), which takes their mean over the replicas first"),
    ("tf.reduce_mean(self", "tf.identity(self", USAGE,
     "mine.py:33: adam: the loss is float32 (8, 4); return its mean over the replica's examples, a "
     "floating scalar, or a tuple that begins with it"),
    ("keras.Input([3]), ", "", USAGE,
     "wrap_optimizer(adam): no variables; pass the trainable_variables of a network that is "
     "already built: begin it with keras.Input(shape), or call its build"),
    ("    self.blocks = [Block(), Block()]\n",
     "    self.blocks = [0, keras.layers.Dense(3)]\n", USAGE,
     "the step makes variables in its first call, such as 'blocks/1/000' (...): a restart would "
     "lose them; make them in its constructor: begin a network with keras.Input(shape) or build "
     "it there, and give an optimizer to wrap_optimizer"),
    ("keras.optimizers.Adam()", "keras.optimizers.Adam(clipnorm=1.0)", USAGE,
     "adam: the Keras option 'clipnorm' does not go with replication; set wrap_optimizer's "
     "clip_norm, which clips after the mean over replicas"),
    ("    self.blocks = [Block(), Block()]\n",
     "    self.second = wrap_optimizer(keras.optimizers.Adam(), self.network.weights)\n",
     USAGE, "the variable 'sequential/dense/kernel' belongs to two optimizers of the step, "
            "'optimizer' and 'second'; give it to one of their wrap_optimizer calls"),
    # Data and numbers.
    ("context.batch_size, drop_remainder=True", "context.batch_size", USAGE,
     "the input function yields a tensor of shape (None,); its first axis must be the "
     "pipeline's part of the global batch, context.batch_size = 8 (batch with "
     "drop_remainder=True, so that shapes are static)"),
    ("batch(context.batch_size", "batch(64", USAGE,
     "the input function yields a tensor of shape (64,); its first axis must be the pipeline's "
     "part of the global batch, context.batch_size = 8 (batch with drop_remainder=True, so that "
     "shapes are static)"),
    (".repeat()", "", USAGE,
     "the data set of the input function ended before train.steps; make it repeat()"),
    ("  return dataset\n", "  return iter(dataset)\n", USAGE,
     "the input function must return a tf.data.Dataset of batches, not OwnedIterator"),
    ("** 2)", "/ 0.0)", FAILED,
     "step 1: loss is nan (and 1 more); its batch and numbers are in w/failures/step-00000001; no "
     "checkpoint was saved before"),
    ('tf.reduce_mean(self.network(self.blocks[1](batch["x"])) ** 2)',
     'tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(\n'
     '        batch["label"] + 1, self.network(batch["x"]), from_logits=True))', FAILED,
     "mine.py:...: InvalidArgumentError: ...; an index, such as a label, is too large or negative"),
]
ON_REPLICAS = [  # The same on two replicas, under a strategy.
    ("mirrored", "    return x\n", "    return x + tf.zeros([8, 7])\n", FAILED,
     "mine.py:18: ValueError: Dimensions must be equal, but are 4 and 8 with input shapes: [4,3], "
     "[8,7] (in the layer blocks/1)"),
    ("mirrored", "    return x\n", "    return replicator.all_sum(tf.constant('a'))\n", USAGE,
     "mine.py:18: all_sum: tensors of string cannot travel ... (in the layer blocks/1)"),
    ("mirrored", "    return x\n", "    if replicator.replica_id() == 0:\n      return x\n", FAILED,
     "mine.py:18: ..."),
    ("central_storage", "Dense(4)]", "Dense(4), keras.layers.BatchNormalization()]", USAGE,
     "Replicator.strategy = 'central_storage': it cannot update the variables of the layer "
     "'sequential/batch_normalization' (Keras BatchNormalization) on 2 replicas; use "
     "replicator.GlobalBatchNorm"),
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


def with_traceback(line: str, status: int) -> str:
  """The line, and where the traceback is, unless the run itself has found the failure."""
  is_raised = status == FAILED and line.startswith("mine.py")
  return f"{line}; the traceback is in w/traceback.txt" if is_raised else line


@pytest.mark.parametrize("old, new, status, line", CODE, ids=lambda value: str(value).strip()[:40])
def test_code(old, new, status, line, run_code):
  assert_line(run_code(old, new), status, with_traceback(line, status))


@pytest.mark.parametrize("strategy, old, new, status, line", ON_REPLICAS)
def test_code_on_replicas(strategy, old, new, status, line, run_code):
  found = run_code(old, new, f"Replicator.strategy = '{strategy}'", "Replicator.logical_cpus = 2")
  assert_line(found, status, with_traceback(line, status))


# ---- Refused before the work --------------------------------------------------------------------

LATE = [  # Mistakes that only show when the step is traced, and the line.
    ("genrator/adam.learning_rate = 1e-4",
     "--gin_param: genrator/adam.learning_rate is never used: adam is not called in the scope "
     "'genrator'. Did you mean 'generator'? It is called in the scopes discriminator, encoder, "
     "generator"),
    ("microbatch.n = 5", "...microbatch.n = 5: does not divide a replica's batch of ..."),
    ("SNGAN.discriminator_updates = 7",
     "...a replica's batch of 128 examples does not divide into 7 parts; ..."),
    ("Guard.limits = {'dicriminator': 9.0}",
     "Guard.limits: the step logs no 'dicriminator'. Did you mean 'discriminator'? It logs: ..."),
    ("Checkpoints.keep_best = 'generater'",
     "Checkpoints.keep_best = 'generater': nothing of that name is logged. Did you mean "
     "'generator'? ..."),
]


@pytest.mark.slow
@pytest.mark.parametrize("setting, line", LATE)
def test_late(setting, line, run, tmp_path):
  workdir = tmp_path / "run"
  assert_line(run(sngan, [DIGITS, f"--gin_param={setting}", f"--workdir={workdir}"]), USAGE, line)
  assert not (workdir / "classifier").exists() and not (workdir / "metrics.jsonl").exists()
