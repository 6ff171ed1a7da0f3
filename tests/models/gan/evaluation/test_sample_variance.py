"""The variances of samples and images over the global batch, against NumPy."""

from models.gan.evaluation import sample_variance
from replicator import Replicator, microbatch

import numpy as np
import pytest

IMAGES, SAMPLES = np.random.default_rng(0).normal(size=[2, 8, 4, 3, 2]) * [[[[[1.0]]]], [[[[0.3]]]]]


@pytest.mark.parametrize("replicas, parts", [(1, 1), (2, 1), (2, 2)])
def test_the_variances_are_those_of_the_global_batch(replicas, parts):
  engine = Replicator("mirrored", logical_cpus=replicas)
  step = lambda batch: sample_variance.variances(
      microbatch(lambda part: sample_variance.moments(*part), batch, n=parts))
  for found in engine.run(step, (IMAGES, SAMPLES.astype(np.float32))):
    assert list(found) == ["sample_variance", "data_variance"]
    np.testing.assert_allclose(found["data_variance"], IMAGES.var(0).mean(), rtol=1e-12)
    np.testing.assert_allclose(found["sample_variance"], SAMPLES.var(0).mean(), rtol=1e-6)
