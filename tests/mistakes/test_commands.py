"""The mistakes of a newcomer in a command, a gin file and data, and the one line that each gets.

Every row runs as on the command line, in one process. `...` in a line stands for words of
TensorFlow or Keras, which differ between their versions.
"""

import pytest

from experiments.sngan import sngan
from tests.mistakes.conftest import DIGITS, USAGE, assert_line

# ---- The command line ---------------------------------------------------------------------------

FLAGS = [  # What was typed after `python -m experiments.sngan`, and the line.
    ([], "the configuration must set: train.steps; write --gin_file=F, where F is one of "
         "configs/sngan_cifar10.gin, configs/sngan_cifar10_small.gin, "
         "configs/sngan_digits.gin, configs/sngan_imagenet128.gin, "
         "configs/sngan_shapes32.gin, configs/sngan_stacked_digits.gin"),
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

# Those that depend on the names of an experiment; `test_config` of the application has the others.
SETTINGS = [  # What was written into a gin file, and the line.
    ("adam/generator.learning_rate = 1e-4",
     "nothing configurable is called 'generator'. Scopes come first: write "
     "generator/adam.learning_rate"),
    ("generator/learning_rate = 1e-4",
     "the macro generator/learning_rate is never used. Did you mean "
     "generator/LinearDecay.learning_rate or generator/adam.learning_rate?"),
    ("generator/SNGAN.loss = @wgan",
     "nothing configurable is called 'wgan'. Write one of: @hinge, @least_squares, @minimax, "
     "@modified, @wasserstein"),
    ("sngan.data = @Mnist",
     "nothing configurable is called 'Mnist'. Write one of: @Augmented, @Digits, @HuggingFace, "
     "@ImageArrays, @ImageFolder, @ImageZip, @Shapes, @StackedDigits, @TFDS, @TFRecords"),
]


@pytest.mark.parametrize("setting, line", SETTINGS, ids=lambda value: value[:40])
def test_gin(setting, line, run, folder):
  (folder / "mine.gin").write_text(f"include 'configs/sngan_digits.gin'\n\n{setting}\n")
  assert_line(run(sngan, ["--gin_file=mine.gin"]), USAGE, f"mine.gin:3: {line}")


# ---- Values -------------------------------------------------------------------------------------

VALUES = [  # Parameters, and the line.
    (["SNGAN.latent_dim = 0"], "SNGAN.latent_dim = 0: must be at least 1"),
    (["sngan.data = @Shapes", "Shapes.resolution = 20"],
     "SNGANGenerator.resolution = 20: SN-GAN has no networks of this size; write one of 8, 16, "
     "32, 64, 128"),
]


@pytest.mark.parametrize("params, line", VALUES, ids=lambda value: str(value)[:40])
def test_values(params, line, run, tmp_path):
  words = [DIGITS, *(f"--gin_param={param}" for param in params), f"--workdir={tmp_path}/run"]
  assert_line(run(sngan, words), USAGE, line)
  assert not (tmp_path / "run" / "classifier").exists()  # Refused before any work.
