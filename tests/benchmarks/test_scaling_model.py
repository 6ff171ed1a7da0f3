"""The model of processes that share cores against closed forms, and its fit."""

import numpy as np
import pytest

from benchmarks.scaling_model import OnCores, fit
from replicator.doctor.scaling.model import Network, transfer_seconds
from replicator.step.context import Transfer


def test_processes_that_share_cores_wait_for_each_other():
  step = OnCores(cores=2, seconds=1.0, cpu_seconds=1.2,
                       network=Network(8.0, 0.5, shape="ring"),
                       cpu_network=Network(16.0, 0.1, shape="ring"))
  assert step.step_seconds([], 1) == 1.0
  assert step.step_seconds([], 8) == pytest.approx(8 * 1.2 / 2)
  one = Transfer("all_gather", 8.0)
  assert step.transfer_seconds(one, 2) == pytest.approx(0.5 + 1.0)             # A core each.
  assert step.transfer_seconds(one, 8) == pytest.approx(4 * 7 * (0.1 + 0.5))   # 4 on a core.
  assert step.step_seconds([one, one], 8) == pytest.approx(4.8 + 2 * 16.8)


def test_the_fit_finds_the_network_that_was_measured():
  true = Network(bandwidth=2e8, latency=3e-4, launch=8e-4, shape="ring")
  found = fit([(transfer, n, transfer_seconds(transfer, n, true))
                     for transfer in (Transfer("all_reduce", 1e3), Transfer("all_reduce", 1e7),
                                      Transfer("all_gather", 1e5)) for n in (2, 4, 8)])
  np.testing.assert_allclose([found.bandwidth, found.latency, found.launch], [2e8, 3e-4, 8e-4],
                             rtol=1e-9)
  assert found.shape == "ring"
