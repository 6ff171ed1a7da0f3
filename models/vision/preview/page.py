"""The page of a preview: one self-contained HTML file."""

import base64
import collections
import io
import pathlib
from collections.abc import Sequence
from typing import Any

from models.vision.augmentation.random_view import Augmented
from models.vision.files.listing import printable
from models.vision.images.decode import as_image, decode
from models.vision.images.encoded_images import DecodedImages
from models.vision.images.image_source import ImageSource
from models.vision.preview.survey import Concern, Survey
from replicator.training.inputs.inputs import variant
from replicator.training.inputs.shuffle import shuffled
from replicator.training.workdir import pages
from replicator.training.workdir.pages import Badge, Picture

import numpy as np
import tensorflow as tf

_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_SEED = 7           # Fixed, so that the same data makes the same page.
_A_CLASS = 12       # Pictures of a class.
_MOST_CLASSES = 60  # Classes with pictures.
_FREQUENT = 8       # Sizes that are listed.
_UNREADABLE = 12    # Images that are listed.
_BATCH = 24         # Examples of the batch, or as many as there are.
_SIDE = 96          # Pixels of a picture.
_PIXELS_SHOW = 64   # Pictures up to this size are shown with visible pixels.


def render(survey: Survey, found: Sequence[Concern], source: DecodedImages,
           augmentation: Sequence[str], command: str) -> str:
  """Renders the page of a survey, with its concerns, and examples as drawn in training.

  `augmentation` has the current bindings of `Augmentation`; `command` recreates the page.
  """
  sizes = collections.Counter(map(tuple, survey.sizes.tolist())).most_common()
  warnings = f"{len(found)} warning{'s' if len(found) > 1 else ''}" if found else "no warnings"
  counts, all_seen = survey.counts, len(survey.indices) + len(survey.unreadable)
  seen = ("all images were looked at" if all_seen == len(survey.encoded.labels) else
          f"{all_seen:,} of {len(survey.encoded.labels):,} images, drawn at random, were looked at")
  tiles = {"images": len(survey.encoded.labels), "classes": len(counts),
           "in the largest class": counts.max(), "in the smallest class": counts.min(),
           "sizes": len(sizes)}
  return pages.render(
      "preview.html", _TEMPLATES, title=printable(survey.encoded.path), what="Preview of images",
      badges=[Badge(warnings, found[0].kind if found else "good"), Badge(seen)],
      tiles={name: f"{number:,}" for name, number in tiles.items()}, concerns=found,
      classes=_classes(survey, source.image_shape), num_classes=len(counts),
      batch=_batch(source), augmented=_batch(Augmented(lambda: source)), augmentation=augmentation,
      resolution=source.image_shape[0], frequent=sizes[:_FREQUENT], num_sizes=len(sizes),
      unreadable=[(survey.title(index), reason) for index, reason
                  in list(survey.unreadable.items())[:_UNREADABLE]], command=printable(command))


def _classes(survey: Survey, image_shape: tuple[int, int, int]) -> list[dict[str, Any]]:
  """Describes the first classes, with random images; `share` is relative to the largest class."""
  generator, counts = np.random.default_rng(_SEED), survey.counts
  labels = survey.encoded.labels[survey.indices]
  side = min(image_shape[0], _SIDE)
  made = []
  for label, name in enumerate(survey.encoded.class_names[:_MOST_CLASSES]):
    of_class = generator.permutation(survey.indices[labels == label])[:_A_CLASS]
    pictures = [_embedded(decode(survey.encoded.read(index), (side, side, image_shape[2])),
                          survey.title(index)) for index in np.sort(of_class).tolist()]
    made.append({"name": name, "count": int(counts[label]), "share": counts[label] / counts.max(),
                 "pictures": pictures})
  return made


def _batch(source: ImageSource) -> list[Picture]:
  """Returns the first examples of a run, as its input pipeline makes them."""
  # Without the pipeline, which prefetches several batches: large files take seconds.
  position = tf.range(min(_BATCH, source.size), dtype=tf.int64)
  seeds = tf.stack([tf.zeros_like(position), position], -1)
  indices = shuffled(position, tf.zeros_like(seeds, tf.uint32), source.size)
  batch = variant(source, indices, seeds)
  return [_embedded(image, source.class_names[label]) for image, label in zip(
      batch["image"].numpy(), batch["label"].numpy(), strict=True)]


def _embedded(pixels: np.ndarray, caption: str) -> Picture:
  """Embeds an image in the page, from uint8 [h, w, 1 or 3]."""
  image, file = as_image(pixels), io.BytesIO()
  image.thumbnail((_SIDE, _SIDE))
  image.save(file, "PNG")
  return Picture(caption, f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}",
                 max(image.size) <= _PIXELS_SHOW)
