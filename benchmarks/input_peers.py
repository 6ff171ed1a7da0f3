"""The peers of `benchmarks.input_pipeline`: endless batches of random-resized crops, uint8.

Each follows its package's documentation. All resize with an antialiased bilinear filter, except
`tf_data(fast=True)`.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_READY = 2  # Batches.


def tf_data(shards: Path, batch_size: int, resolution: int, fast: bool) -> Iterator[Any]:
  """Plain tf.data: records of shards one after the other, decoded in parallel and in any order.

  If `fast`, the decoder is TensorFlow's faster and less exact one, and the resizing has no filter
  against aliasing, as in many ImageNet scripts.
  """
  import tensorflow as tf

  def crop(content: tf.Tensor) -> tf.Tensor:
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(content), tf.zeros([1, 0, 4]), aspect_ratio_range=RATIO,
        area_range=SCALE, max_attempts=10, min_object_covered=0.0,
        use_image_if_no_bounding_boxes=True)
    image = tf.io.decode_and_crop_jpeg(content, tf.concat([begin[:2], size[:2]], 0), channels=3,
                                       dct_method="INTEGER_FAST" if fast else "INTEGER_ACCURATE")
    image = tf.image.resize(image, [resolution, resolution], antialias=not fast)
    return tf.image.random_flip_left_right(tf.cast(tf.round(image), tf.uint8))

  def example(record: tf.Tensor) -> dict[str, tf.Tensor]:
    found = tf.io.parse_single_example(record, {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64)})
    return {"image": crop(found["image/encoded"]), "label": found["image/class/label"]}

  records = tf.data.TFRecordDataset(sorted(map(str, shards.glob("*.tfrecord")))).repeat()
  examples = records.map(example, tf.data.AUTOTUNE, deterministic=False)
  # As many batches as the others have; AUTOTUNE takes many more, and so much memory.
  return examples.batch(batch_size, drop_remainder=True).prefetch(_READY).as_numpy_iterator()


def grain(files: Path, batch_size: int, resolution: int, workers: int) -> Iterator[Any]:
  """Grain with worker processes, and Pillow in them."""
  import grain.python as pygrain
  from PIL import Image

  def example(name: str, random: np.random.Generator) -> dict[str, Any]:
    with Image.open(name) as image:
      box = _box(*image.size, random)
      part = image.convert("RGB").crop(box).resize((resolution, resolution),
                                                   Image.Resampling.BILINEAR)
    pixels = np.asarray(part)
    return {"image": pixels[:, ::-1] if random.random() < 0.5 else pixels,
            "label": labels[Path(name).parent.name]}

  names = sorted(map(str, files.glob("*/*.jpg")))
  labels = {name: i for i, name in enumerate(sorted(each.name for each in files.iterdir()))}
  dataset = pygrain.MapDataset.source(names).seed(0).shuffle().repeat().random_map(example)
  dataset = dataset.batch(batch_size, drop_remainder=True).to_iter_dataset(
      pygrain.ReadOptions(num_threads=1, prefetch_buffer_size=_READY))
  return iter(dataset.mp_prefetch(pygrain.MultiprocessingOptions(num_workers=workers)))


def _box(width: int, height: int, random: np.random.Generator) -> tuple[int, int, int, int]:
  for _ in range(10):
    pixels = width * height * random.uniform(*SCALE)
    aspect = math.exp(random.uniform(*np.log(RATIO)))
    w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
    if w <= width and h <= height:
      left, top = random.integers(width - w + 1), random.integers(height - h + 1)
      return int(left), int(top), int(left) + w, int(top) + h
  return 0, 0, width, height


def data_loader(files: Path, batch_size: int, resolution: int, workers: int) -> Iterator[Any]:
  """PyTorch's DataLoader with worker processes, and torchvision's transforms in them."""
  from torch.utils.data import DataLoader
  from torchvision import datasets, transforms

  crop = transforms.Compose([transforms.RandomResizedCrop(resolution, SCALE, RATIO),
                             transforms.RandomHorizontalFlip(), transforms.PILToTensor()])
  loader = DataLoader(datasets.ImageFolder(str(files), crop), batch_size, shuffle=True,
                      num_workers=workers, drop_last=True, persistent_workers=True,
                      prefetch_factor=_READY)
  return itertools.chain.from_iterable(itertools.repeat(loader))
