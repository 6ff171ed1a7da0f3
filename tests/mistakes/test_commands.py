"""The mistakes of a newcomer in a command, a gin file and data, and the one line that each gets.

Every row runs as on the command line, in one process. `...` in a line stands for words of
TensorFlow or Keras, which differ between their versions.
"""

import pytest

from experiments.sngan import sngan
from tests.mistakes.conftest import DIGITS, USAGE, assert_line

FOLDER = "--gin_file=configs/sngan_cifar10.gin"

# ---- The command line ---------------------------------------------------------------------------

FLAGS = [  # What was typed after `python -m experiments.sngan`, and the line.
    ([], "the configuration must set: train.steps; write --gin_file=F, where F is one of "
         "configs/sngan_cifar10.gin, configs/sngan_cifar10_small.gin, "
         "configs/sngan_digits.gin, configs/sngan_imagenet128.gin, "
         "configs/sngan_shapes32.gin, configs/sngan_stacked_digits.gin"),
    (["--gin_file=sngan_digits.gin"],
     "--gin_file=sngan_digits.gin: no such file. Did you mean 'configs/sngan_digits.gin'?"),
    (["--gin-file=configs/sngan_digits.gin"],
     "command line: unrecognized arguments: --gin-file=configs/sngan_digits.gin. Did you mean "
     "'--gin_file'?"),
    ([DIGITS, "--steps=10"],
     "command line: unrecognized arguments: --steps=10. A setting is written as "
     '--gin_param="owner.steps = 10"'),
    ([DIGITS, "--workdir="],
     "command line: argument --workdir: is empty; write the name of a folder."),
    ([DIGITS, "--workdir=a_file"], "--workdir=a_file: is a file; write the name of a folder"),
    ([DIGITS, "--diff=runs/nowhere"],
     "--diff=runs/nowhere: runs/nowhere: no such file; write the workdir of a run"),
]


@pytest.mark.parametrize("words, line", FLAGS, ids=lambda value: " ".join(value)[:50])
def test_flags(words, line, run):
  assert_line(run(sngan, words), USAGE, line)


# ---- gin ----------------------------------------------------------------------------------------

# Those that depend on the names of an experiment; `test_config_mistakes` has the others.
SETTINGS = [  # What was written into a gin file, and the line.
    ("adam/generator.learning_rate = 1e-4",
     "nothing configurable is called 'generator'. Scopes come first: write "
     "generator/adam.learning_rate"),
    ("generator/learning_rate = 1e-4",
     "the macro generator/learning_rate is never used. Did you mean "
     "generator/LinearDecay.learning_rate or generator/adam.learning_rate?"),
    ("adam.lr = 1e-4",
     "'adam' has no parameter 'lr'. Did you mean 'learning_rate'? It has: learning_rate, ..."),
    ("generator/SNGAN.loss = @wgan",
     "nothing configurable is called 'wgan'. Write one of: @hinge, @least_squares, @minimax, "
     "@modified, @wasserstein"),
    ("sngan.data = @Mnist",
     "nothing configurable is called 'Mnist'. Write one of: @Augmented, @Digits, @HuggingFace, "
     "@ImageArrays, @ImageFolder, @ImageZip, @Shapes, @StackedDigits, @TFDS, @TFRecords"),
    ("train.batch_size = 64",
     "'train' has no parameter 'batch_size'. Did you mean 'global_batch_size'? It has: ..."),
]


@pytest.mark.parametrize("setting, line", SETTINGS, ids=lambda value: value[:40])
def test_gin(setting, line, run, folder):
  (folder / "mine.gin").write_text(f"include 'configs/sngan_digits.gin'\n\n{setting}\n")
  assert_line(run(sngan, ["--gin_file=mine.gin"]), USAGE, f"mine.gin:3: {line}")


# ---- Values, devices and data -------------------------------------------------------------------

MIRRORED = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 4"]
VALUES = [  # Further gin files, parameters, and the line.
    ([], [*MIRRORED, "train.global_batch_size = 65"],
     "train.global_batch_size = 65: does not divide by the 4 replicas; write 64 or 68"),
    ([], ["Replicator.jit_compile = True", "Replicator.strategy = 'parameter_server'"],
     "Replicator.jit_compile = True: not with 'parameter_server': it is for synchronous replicas; "
     "drop one of the two"),
    ([], ["Guard.action = 'rollback'"],
     "--gin_param: Guard.action = 'rollback': must be one of 'stop', 'warn', 'roll_back', 'off'. "
     "Did you mean 'roll_back'?"),
    ([], ["SNGAN.latent_dim = 0"], "SNGAN.latent_dim = 0: must be at least 1"),
    ([], ["sngan.data = @Shapes", "Shapes.resolution = 20"],
     "SNGANGenerator.resolution = 20: SN-GAN has no networks of this size; write one of 8, 16, "
     "32, 64, "
     "128"),
    ([FOLDER], ["ImageFolder.path = 'flat'"],
     "ImageFolder.path = 'flat': no image in any sub-folder, but 2 in the folder itself. Expected "
     "one sub-folder of images per class, such as cats/001.jpg and dogs/001.jpg; images without "
     "classes may all be in one sub-folder, such as flat/all."),
]


@pytest.mark.parametrize("files, params, line", VALUES, ids=lambda value: str(value)[:40])
def test_values(files, params, line, run, tmp_path):
  words = [*(files or [DIGITS]), *(f"--gin_param={param}" for param in params)]
  assert_line(run(sngan, [*words, f"--workdir={tmp_path}/run"]), USAGE, line)
  assert not (tmp_path / "run" / "classifier").exists()  # Refused before any work.


# ---- Refused before the work --------------------------------------------------------------------

LATE = [  # Mistakes that only show when the step is traced, and the line.
    ("genrator/adam.learning_rate = 1e-4",
     "--gin_param: genrator/adam.learning_rate is never used: adam is not called in the scope "
     "'genrator'. Did you mean 'generator'? It is called in the scopes discriminator, encoder, "
     "generator"),
    ("microbatch.n = 5", "...microbatch.n = 5: does not divide a replica's batch of ..."),
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
