"""Imports PyTorch, where it is installed, before TensorFlow.

After TensorFlow, torchvision of a PyTorch that is built for CUDA ends the process.
"""

import contextlib

with contextlib.suppress(ImportError):
  import torchvision  # noqa: F401
