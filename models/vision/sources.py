"""All image sources; to import this module makes gin know them."""

from models.vision.augmentation.random_view import Augmented
from models.vision.builtin.digits import Digits
from models.vision.builtin.shapes import Shapes
from models.vision.builtin.stacked_digits import StackedDigits
from models.vision.files.hugging_face import HuggingFace
from models.vision.files.image_arrays import ImageArrays
from models.vision.files.image_folder import ImageFolder
from models.vision.files.image_zip import ImageZip
from models.vision.files.tfds import TFDS
from models.vision.shards.tfrecords import TFRecords

__all__ = ["TFDS", "Augmented", "Digits", "HuggingFace", "ImageArrays", "ImageFolder", "ImageZip",
           "Shapes", "StackedDigits", "TFRecords"]
