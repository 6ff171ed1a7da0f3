"""Imports PyTorch, if it is installed, before TensorFlow.

With a CUDA build of PyTorch, importing torchvision after TensorFlow crashes the process.
"""

import contextlib

with contextlib.suppress(ImportError):
  import torchvision  # noqa: F401
