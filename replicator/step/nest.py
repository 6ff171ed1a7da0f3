"""Nests of tensors, in which `None` stands for a missing tensor."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tree

Nest = Any  # any nest of tensors that dm-tree understands


def map_tensors(function: Callable[[tf.Tensor], Any], values: Nest) -> Nest:
  """Applies `function` to each tensor of a nest, and keeps `None`."""
  return tree.map_structure(lambda x: None if x is None else function(x), values)
