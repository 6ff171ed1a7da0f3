"""Exports the networks of a run to files that load without this project.

    replicator export --run=RUN --out=FOLDER [--networks=generator,encoder]
        [--formats=savedmodel,onnx] [--step=N|best]

Writes a model card, `README.md`, and each network in each format: the generator and the encoder of
a GAN, the greedy policy of an agent, or the Keras networks that are attributes of any other step.
Averaged weights are used if the run has them. `--networks` takes any such attribute. To check each
file, a separate process loads it, and its outputs are compared with those of the run.
"""

import argparse
import pathlib
import shutil
import sys
from collections.abc import Sequence

from experiments import sample
from models.export import card, formats, networks
from models.export.networks import ExportedNetwork
from replicator import atomic
from replicator.app import load
from replicator.app.loading_flags import add_loading_flags
from replicator.console.command import Parser, status_of
from replicator.console.status import Status
from replicator.training.workdir import reader

import tensorflow as tf


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _run(_parse(words)), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Exports the networks of a run.")
  parser.add_argument("--run", required=True, metavar="RUN", help="the workdir of the run")
  parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FOLDER",
                      help="a new folder")
  parser.add_argument("--networks", type=_words, default=[], metavar="generator,encoder",
                      help="the networks; can include other network attributes of the step")
  parser.add_argument("--formats", type=_words, default=list(formats.SUFFIXES),
                      metavar="savedmodel,onnx", help="by default both")
  add_loading_flags(parser)
  flags = parser.parse_args(words)
  flags.out = sample.new_path(flags.out)
  formats.check_formats(flags.formats)
  return flags


def _words(text: str) -> list[str]:
  return list(dict.fromkeys(text.split(",")))


def _run(flags: argparse.Namespace) -> int:
  load.check_program(flags.run, flags.yes)
  tf.config.set_visible_devices([], "GPU")  # So that outputs are compared on one device.
  tf.config.experimental.enable_op_determinism()
  with Status() as status:
    status.doing("loading the run")
    run, number = load.load_run(flags.run, flags.step, flags.gin_param, flags.yes)
    wanted = networks.chosen(run, flags.networks)
    with atomic.created(flags.out) as folder:
      folder.mkdir()
      files = _write(wanted, flags.formats, folder, status)
      found = reader.read(flags.run)
      (folder / "README.md").write_text(card.text(found, number, files))
      shutil.copy(found.folder / "config.gin", folder)
  greatest = max(file.difference for file in files)
  print(f"{flags.out}: {', '.join(each.name for each in wanted)} of {flags.run}, step {number}, as "
        f"{', '.join(flags.formats)}; largest difference from the run {greatest:.2g}")
  return 0


def _write(wanted: Sequence[ExportedNetwork], names: Sequence[str],
           folder: pathlib.Path, status: Status) -> list[card.File]:
  written = []
  for network in wanted:
    status.doing(f"writing the {network.name}")
    paths = formats.write(network, names, folder)
    written += [(network, name, path) for name, path in zip(names, paths, strict=True)]
  status.doing("loading the files in another process")
  differences = formats.check([path for *_, path in written])
  return [card.File(*file, differences[file[2].name]) for file in written]


if __name__ == "__main__":
  sys.exit(main())
