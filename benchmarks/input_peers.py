"""The peers of `benchmarks.input_pipeline`: endless batches of random-resized crops, uint8.

Each is written as its own documentation does it. All resize with a bilinear filter that is as wide
as the shrinking, but for `tf_data_fast`, which picks pixels.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def tf_data(files: Path | None, shards: Path | None, batch_size: int, resolution: int,
            antialias: bool = True) -> Iterator[Any]:
  """Plain tf.data, which reads files of a folder or records of shards one after the other."""
  import tensorflow as tf

  def crop(content: tf.Tensor) -> tf.Tensor:
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(content), tf.zeros([1, 0, 4]), aspect_ratio_range=RATIO,
        area_range=SCALE, max_attempts=10, min_object_covered=0.0,
        use_image_if_no_bounding_boxes=True)
    image = tf.image.decode_and_crop_jpeg(content, tf.concat([begin[:2], size[:2]], 0), channels=3)
    image = tf.image.resize(image, [resolution, resolution], antialias=antialias)
    return tf.cast(tf.round(tf.image.random_flip_left_right(image)), tf.uint8)

  def of_record(record: tf.Tensor) -> tf.Tensor:
    features = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
    return crop(tf.io.parse_single_example(record, features)["image/encoded"])

  if shards:
    dataset = tf.data.TFRecordDataset(sorted(map(str, shards.glob("*.tfrecord"))))
    read = of_record
  else:
    assert files
    dataset = tf.data.Dataset.from_tensor_slices(sorted(map(str, files.glob("*/*.jpg"))))
    read = lambda name: crop(tf.io.read_file(name))
  dataset = dataset.repeat().map(read, tf.data.AUTOTUNE).batch(batch_size, drop_remainder=True)
  return dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def grain(files: Path, batch_size: int, resolution: int, workers: int) -> Iterator[Any]:
  """Grain with worker processes, and Pillow in them."""
  import grain.python as pygrain
  from PIL import Image

  def crop(name: str, random: np.random.Generator) -> np.ndarray:
    with Image.open(name) as image:
      box = _box(image.width, image.height, random)
      image = image.convert("RGB").crop(box).resize((resolution, resolution),
                                                    Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels

  names = sorted(map(str, files.glob("*/*.jpg")))
  dataset = pygrain.MapDataset.source(names).seed(0).shuffle().repeat().random_map(crop)
  dataset = dataset.batch(batch_size, drop_remainder=True).to_iter_dataset(
      pygrain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
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
                      num_workers=workers, drop_last=True, persistent_workers=True)
  return itertools.chain.from_iterable(itertools.repeat(loader))
