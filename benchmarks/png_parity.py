"""Compares `replicator evaluate` with torch-fidelity and `prdc`, on the same PNG files.

  pip install torch torch-fidelity prdc
  python -m benchmarks.png_parity [--images=FOLDER] [--count=300] [--size=64]

Both read two folders of PNG files and one file of random Inception weights, written by torch. The
files are squares of the images in FOLDER, or without FOLDER, random squares of two photographs.
Every second one has less contrast, and stands for a generated image. Each line has the number of
the reference and of this project; see `benchmarks.metric_parity`. The exit status is 1 if one
differs by more than `allowed`. Below 2,048 images, there are fewer samples than dimensions.
"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile

from benchmarks import feature_parity, metric_parity
from benchmarks.metric_parity import Comparison
from benchmarks.usage import require
from experiments import evaluate
from models.metrics.comparison import Gathered, gather
from models.metrics.distances.kernel import kernel_distance
from models.metrics.distances.neighbors import PRDC
from models.metrics.extractors import inception
from models.metrics.images.image_sets import open_set

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
SUBSETS = 100
EVALUATED = {  # The rows of `replicator evaluate`, and what torch-fidelity calls them.
    "FID": ("fid", "frechet_inception_distance"), "IS mean": ("is", "inception_score_mean"),
    "precision, k = 3, <=": ("precision", "precision"), "recall, k = 3, <=": ("recall", "recall")}


def write_images(source: str | None, count: int, size: int, folder: pathlib.Path) -> None:
  """Writes `count` images to `folder/real`, and as many with less contrast to `folder/generated`.

  They are `size` pixels high and wide.
  """
  from PIL import Image
  squares = _of_folder(source, 2 * count, size) if source else _of_photographs(2 * count, size)
  for name, images in {"real": squares[::2], "generated": squares[1::2] // 10 * 9 + 9}.items():
    (folder / name).mkdir()
    for number, image in enumerate(images):
      Image.fromarray(image).save(folder / name / f"{number:05}.png")


def _of_folder(source: str, count: int, size: int) -> np.ndarray:
  images = open_set(source, size)
  if images.size < count:
    sys.exit(f"--images={source}: has {images.size:,} images, and {count:,} are needed")
  return np.concatenate(list(images.batches(np.linspace(0, images.size - 1, count).astype(int))))


def _of_photographs(count: int, size: int) -> np.ndarray:
  from sklearn.datasets import load_sample_images
  random = np.random.RandomState(0)
  photographs = load_sample_images().images
  squares = []
  for number in range(count):
    photograph = photographs[number // 2 % len(photographs)]
    top, left = (random.randint(length - size) for length in photograph.shape[:2])
    squares.append(photograph[top:top + size, left:left + size])
  return np.stack(squares)


def theirs(folder: pathlib.Path, weights: str, subset_size: int
           ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
  """Returns torch-fidelity's numbers, and its features of the sets `real` and `generated`."""
  import torch
  import torch_fidelity
  numbers = torch_fidelity.calculate_metrics(
      input1=str(folder / "generated"), input2=str(folder / "real"), cuda=False, verbose=False,
      save_cpu_ram=True, isc=True, fid=True, kid=True, prc=True, kid_subsets=SUBSETS,
      kid_subset_size=subset_size, feature_extractor="inception-v3-compat",
      feature_extractor_weights_path=weights, feature_layer_prc="2048",
      cache_root=str(folder / "torch"), input1_cache_name="generated", input2_cache_name="real")
  return numbers, {
      name: torch.load(folder / "torch" / f"{name}-inception-v3-compat-features-2048.pt").numpy()
      for name in ("real", "generated")}


def ours(folder: pathlib.Path, weights: str) -> tuple[dict[str, float], dict[str, Gathered]]:
  """Returns the numbers of `replicator evaluate`, and the features of both sets."""
  with contextlib.redirect_stdout(io.StringIO()):
    status = evaluate.main([
        f"--real={folder}/real", f"--fake={folder}/generated", f"--features={weights}",
        "--metrics=fid,is,prdc", f"--json={folder}/ours.json", f"--cache={folder}/cache"])
  if status:
    sys.exit(status)
  extractor = inception.Inception2015(weights)
  sets = {name: open_set(str(folder / name)) for name in ("real", "generated")}
  rows = json.loads((folder / "ours.json").read_text())["rows"]
  return {row["metric"]: row["value"] for row in rows}, {
      name: gather(images.batches(np.arange(images.size)), extractor, {"features"})
      for name, images in sets.items()}


def compare(folder: pathlib.Path, weights: str, count: int) -> list[Comparison]:
  """Returns each number with its reference."""
  import prdc
  subset_size = min(1000, count // 3)
  reference, features = theirs(folder, weights, subset_size)
  found, gathered = ours(folder, weights)
  case = f"{count:,} images"
  comparisons = [
      Comparison(case, f"features, {name}", 0.0,
                 feature_parity.error(gathered[name].features, features[name]), 1.0)
      for name in features]
  for name, (metric, their_name) in EVALUATED.items():
    number = reference[their_name]
    comparisons.append(Comparison(case, name, number, found[metric],
                                  abs(number) if metric == "fid" else 1.0))
  kid = kernel_distance(gathered["real"].features, gathered["generated"].features, SUBSETS,
                        subset_size)
  kernel = metric_parity.kernel_size(*features.values())
  comparisons += [
      Comparison(case, f"KID {name}", reference[f"kernel_inception_distance_{name}"], value, kernel)
      for name, value in zip(("mean", "std"), kid, strict=True)]
  with contextlib.redirect_stdout(io.StringIO()):
    strict = prdc.compute_prdc(features["real"], features["generated"], nearest_k=PRDC.k)
  return comparisons + [
      Comparison(case, f"{name}, k = 5, <", float(strict[name]), found[name], 1.0)
      for name in ("density", "coverage")]


def main(argv: list[str]) -> None:
  del argv
  require(*metric_parity.NEEDED)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    write_images(FLAGS.images, FLAGS.count, FLAGS.size, folder)
    weights = feature_parity.write(inception.build(), inception.norm_of, name, zipped=True)
    sys.exit(metric_parity.print_tables(compare(folder, weights, FLAGS.count)))


if __name__ == "__main__":
  flags.DEFINE_string("images", None, "A folder of images; by default two photographs.")
  flags.DEFINE_integer("count", 300, "Real images, and as many in the place of generated ones.", 10)
  flags.DEFINE_integer("size", 64, "Height and width of the PNG files.", 8)
  app.run(main)
