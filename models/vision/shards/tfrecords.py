"""TFRecord shards of images as a source with random access."""

import gin

from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages
from models.vision.shards.sharded_images import ShardedImages
from replicator import UsageError


@gin.configurable
class TFRecords(DecodedImages):
  """Images of the shards that `python -m models.vision.convert` wrote: an `ImageSource`.

  Example `i` is example `i` of what was converted, so a run draws the same examples from both.

  Shards in ImageNet's published layout, `train-00000-of-01024`, are read as well. The first run
  reads them once to index them.
  """

  def __init__(self, path: str, resolution: int | None = None, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT) -> None:
    """Reads the index of the shards.

    Args:
      path: the folder of the shards; or a pattern, `imagenet/train-*`, where there are several
        sets of them.
      resolution: height and width of the examples, in pixels; by default, those of the conversion.
      on_error: as that of `ImageFolder`; 'skip' also does without what a truncated shard lacks.
      memory_limit: as that of `ImageFolder`.

    Raises:
      UsageError: as `ShardedImages`; or a record cannot be decoded, or an argument is wrong.
    """
    images = ShardedImages(path, skips=on_error == "skip")
    shape = images.image_shape
    if resolution is None:
      if shape is None:
        raise UsageError(f"TFRecords.resolution: must be set, since the images in {path} have "
                         "their own sizes")
      resolution = shape[0]
    super().__init__(images, resolution, on_error, memory_limit, channels=shape[2] if shape else 3)
