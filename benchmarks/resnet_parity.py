"""Checks that our ResNets give torchvision's logits for the same weights and images.

  pip install torch torchvision
  python -m benchmarks.resnet_parity [--write=tests/models/vision/resnet_goldens.json]

It prints each network's number of parameters, which must equal torchvision's, and the error of its
logits for images of two sizes: the norm of the difference, relative to the norm of torchvision's
logits. The exit status is 1 if an error exceeds 1e-4. `--write` also writes digests of
torchvision's logits, for the tests.
"""

from benchmarks import torch_first  # noqa: F401

# isort: split
import importlib.metadata
import json
import pathlib
import sys
from collections.abc import Callable

from benchmarks.feature_parity import digest, error, random_tensors, seed_images
from benchmarks.usage import require
from models.vision.classification.resnet import ConvNorm, ResNet
from models.vision.images.image_source import to_unit_range

import numpy as np
import tensorflow as tf
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("write", None, "Where to write what the tests compare with.")

NEEDED = ("torch", "torchvision")
DEPTHS = (18, 34, 50, 101)
ALLOWED = 1e-4
SIZES = (64, 224)


def main(arguments: list[str]) -> None:
  """Prints the errors, and writes goldens."""
  del arguments
  require(*NEEDED)
  goldens, is_equal = {}, True
  for depth in DEPTHS:
    network = ResNet(1000, depth=depth)
    tensors = random_tensors(shapes(network))
    assign(network, tensors)
    count = sum(int(np.prod(v.shape)) for v in network.trainable_variables)
    theirs, their_count = _theirs(depth, tensors)
    is_equal &= count == their_count
    print(f"resnet{depth}: {count:,} parameters, torchvision {their_count:,}")
    for size in SIZES:
      expected = theirs(inputs(size))
      if size == SIZES[0]:
        goldens[f"resnet{depth}"] = {
            "parameters": their_count,
            "logits": [[float(f"{number:.8g}") for number in digest(row)] for row in expected]}
      found = error(network(inputs(size)).numpy(), expected)
      is_equal &= found <= ALLOWED
      print(f"  {size} px: error {found:.1e}")
  if FLAGS.write:
    versions = {name: importlib.metadata.version(name) for name in (*NEEDED, "numpy")}
    source = {"command": "python -m benchmarks.resnet_parity --write=FILE", **versions}
    pathlib.Path(FLAGS.write).write_text(json.dumps(
        {"source": source, "networks": goldens}, indent=1) + "\n")
  sys.exit(not is_equal)


def inputs(size: int) -> tf.Tensor:
  """Computes two images from a formula, in [-1, 1]: float32 [2, size, size, 3]."""
  return to_unit_range(seed_images(size))


def variables(network: ResNet) -> dict[str, tf.Variable]:
  """Returns a network's variables by torchvision's names."""
  found = _of_unit(network.stem, "conv1", "bn1")
  stage, number, filters = 0, 0, None
  for block in network.blocks:
    stage, number = (stage, number + 1) if block.filters == filters else (stage + 1, 0)
    filters = block.filters
    prefix = f"layer{stage}.{number}"
    for i, unit in enumerate(block.residual, 1):
      found |= _of_unit(unit, f"{prefix}.conv{i}", f"{prefix}.bn{i}")
    if block.shortcut is not None:
      found |= _of_unit(block.shortcut, f"{prefix}.downsample.0", f"{prefix}.downsample.1")
  return found | {"fc.weight": network.linear.kernel, "fc.bias": network.linear.bias}


def shapes(network: ResNet) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of torchvision's tensors, by name."""
  return {name: _as_theirs(np.empty(variable.shape)).shape
          for name, variable in variables(network).items()}


def assign(network: ResNet, tensors: dict[str, np.ndarray]) -> None:
  """Loads torchvision's tensors into a network."""
  for name, variable in variables(network).items():
    tensor = tensors[name]
    variable.assign(tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T)


def _of_unit(unit: ConvNorm, conv: str, norm: str) -> dict[str, tf.Variable]:
  return {f"{conv}.weight": unit.conv.kernel, f"{norm}.weight": unit.norm.gamma,
          f"{norm}.bias": unit.norm.beta, f"{norm}.running_mean": unit.norm.moving_mean,
          f"{norm}.running_var": unit.norm.moving_variance}


def _as_theirs(array: np.ndarray) -> np.ndarray:
  return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def _theirs(depth: int, tensors: dict[str, np.ndarray]) -> tuple[Callable, int]:
  """Returns a function from images to torchvision's logits, and the number of parameters."""
  import torch
  import torchvision
  network = getattr(torchvision.models, f"resnet{depth}")().eval()
  missing, unexpected = network.load_state_dict(
      {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, strict=False)
  assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)

  def logits(images: tf.Tensor) -> np.ndarray:
    with torch.no_grad():
      return network(torch.from_numpy(images.numpy()).permute(0, 3, 1, 2)).numpy()

  return logits, sum(parameter.numel() for parameter in network.parameters())


if __name__ == "__main__":
  app.run(main)
