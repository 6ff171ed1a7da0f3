"""Weights of PyTorch in Keras layers: which are taken, and which are refused.

The tests of the networks compare what is computed with PyTorch's numbers.
"""

from benchmarks.feature_parity import random_tensors, shapes
from models.metrics.extractors.torch_weights import fill
from replicator.errors import UsageError

import keras
import numpy as np
import pytest


def norm_of(name: str) -> str:
  return f"{name}_bn"


def small() -> keras.Model:
  """A convolution of each kind and a linear layer."""
  inputs = keras.Input([5, 5, 3])
  x = keras.layers.Conv2D(4, (1, 3), name="conv")(inputs)
  x = keras.layers.DepthwiseConv2D(3, name="depthwise")(x)
  x = keras.layers.Dense(2, name="fc")(keras.layers.Flatten()(x))
  return keras.Model(inputs, x, name="Small")


@pytest.fixture(scope="module")
def network():
  return small()


@pytest.fixture
def tensors(network):
  return random_tensors(shapes(network, norm_of))


def test_any_strides_and_float_types_are_taken(network, tensors):
  fill(network, tensors, norm_of, "file")
  expected = network.get_weights()
  tensors["conv.weight"] = np.asfortranarray(tensors["conv.weight"]).astype(np.float64)
  tensors["conv_bn.num_batches_tracked"] = np.array(3)
  fill(network, tensors, norm_of, "file")
  for weight, same in zip(network.get_weights(), expected, strict=True):
    np.testing.assert_array_equal(weight, same)


def change(name: str, value: object):
  def change(tensors: dict) -> None:
    tensors[name] = value
  return change


@pytest.mark.parametrize("spoil, message", [
    (lambda tensors: tensors.pop("depthwise_bn.running_var"),
     r"file has no such tensor where Small needs 'depthwise_bn.running_var' \[4\]"),
    (change("fc.weight", np.zeros([2, 13])), r"file has \[2, 13\] where Small needs 'fc.weight'"),
    (change("conv.weight", np.full([4, 3, 1, 3], np.nan)),
     "non-finite numbers where .* 'conv.weight'"),
    (change("conv_bn.running_var", np.full(4, -1.0)),
     "negative numbers where .* 'conv_bn.running_var'"),
    (change("fc2.weight", np.zeros([2, 2])), "file has 1 tensors that Small .* 'fc2.weight'"),
])
def test_other_weights_are_refused(network, tensors, spoil, message):
  spoil(tensors)
  with pytest.raises(UsageError, match=message):
    fill(network, tensors, norm_of, "file")

