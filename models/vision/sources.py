"""All image sources; to import this module makes gin know them."""

from models.vision.augment import Augmented
from models.vision.digits import Digits
from models.vision.folder import ImageFolder
from models.vision.hugging_face import HuggingFace
from models.vision.image_arrays import ImageArrays
from models.vision.image_zip import ImageZip
from models.vision.shapes import Shapes
from models.vision.stacked_digits import StackedDigits
from models.vision.tfds import TFDS
from models.vision.tfrecords import TFRecords

__all__ = ["TFDS", "Augmented", "Digits", "HuggingFace", "ImageArrays", "ImageFolder", "ImageZip",
           "Shapes", "StackedDigits", "TFRecords"]
