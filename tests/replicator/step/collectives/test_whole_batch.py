"""A batch whose parts the replicas have, as each of them gets it whole."""

from replicator import Replicator
from replicator.step.collectives import whole_batch

import numpy as np
import pytest
import tensorflow as tf

BATCH = {"number": np.arange(6.0, dtype=np.float32), "is_odd": np.arange(6) % 2 == 1,
         "wave": np.exp(1j * np.arange(12)).reshape(6, 2).astype(np.complex64),
         "phase": np.exp(1j * np.arange(6)), "none": None,
         "word": np.array([b"a", b"", "\u00e9".encode(), b"nul\0", b"cat", b"longer"], object),
         "pair": (np.array([[b"a", b"b"]] * 5 + [[b"", b"cde"]], object),)}


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_words_and_complex_numbers_are_joined_as_others_are(replicas):
  replicator = Replicator("mirrored", logical_cpus=replicas)
  batch = {name: value for name, value in BATCH.items() if value is not None}
  for whole in replicator.run(
      lambda batch: whole_batch.joined({**batch, "none": None}), batch):
    tf.nest.assert_same_structure(whole, BATCH, expand_composites=False)
    for name, value in batch.items():
      for found, expected in zip(tf.nest.flatten(whole[name]), tf.nest.flatten(value), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.dtype == tf.convert_to_tensor(expected).dtype


def test_words_that_are_all_empty_stay_so():
  replicator = Replicator("mirrored", logical_cpus=2)
  for whole in replicator.run(whole_batch.joined, np.array([b"", b""], object)):
    assert whole.numpy().tolist() == [b"", b""]
