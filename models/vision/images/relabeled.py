"""Sources relabeled to match another data set's classes, by name."""

from models.vision.images.classes import SHOWN, Classes, unique
from models.vision.images.image_source import ImageSource, SourceOf, classes_of
from replicator import UsageError
from replicator.console.formatting import listed

import numpy as np
import tensorflow as tf
from absl import logging


class _Relabeled(SourceOf):
  """A source whose label i becomes `places[i]`, among classes of these names."""

  def __init__(self, source: ImageSource, places: np.ndarray, class_names: tuple[str, ...]) -> None:
    super().__init__(source)
    self._places, self.class_names = places, class_names

  @property
  def labels(self) -> np.ndarray | None:  # type: ignore[override]
    """The labels of all examples, int32 [size], if the wrapped source has them."""
    of_other = super().labels
    return None if of_other is None else self._places[of_other]

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the examples at int64 `index`."""
    example = super().load(index)
    return {**example, "label": tf.gather(self._places, example["label"])}


def with_classes(source: ImageSource, class_names: tuple[str, ...], setting: str, other: str
                 ) -> ImageSource:
  """Relabels a source by names, to the order of `class_names`.

  Missing classes are logged. In messages, `setting` is the source, and `other` has the classes.

  Raises:
    UsageError: the source has a class that is not in `class_names`.
  """
  own = classes_of(source)
  places = own.labels_in(Classes(unique(class_names)))
  if unknown := [name for name, place, count in zip(own.names, places, own.counts, strict=True)
                 if count and place < 0]:
    raise UsageError(f"{setting}: has the classes {listed(own.names, SHOWN)}, but {other} has "
                     f"{listed(class_names, SHOWN)}, without {listed(unknown)}; give both the same "
                     "names")
  has_images = {place for place, count in zip(places, own.counts, strict=True) if count}
  if missing := [name for label, name in enumerate(class_names) if label not in has_images]:
    logging.warning("%s: has no images of %s of the %s classes of %s: %s", setting,
                    f"{len(missing):,}", f"{len(class_names):,}", other, listed(missing, SHOWN))
  return source if own.names == class_names else _Relabeled(source, places, class_names)
