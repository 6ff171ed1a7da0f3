"""Examples and environment steps a second, and memory."""

import types

from replicator.training.throughput import Throughput

import pytest


def test_rates_are_those_since_the_last_log_point_without_the_first_call():
  run = types.SimpleNamespace(step=10, training=0.0,
                              input_context=types.SimpleNamespace(examples=64))
  throughput = Throughput(run)
  assert not {"system/examples_per_second"} & throughput.scalars({}).keys()
  run.step, run.training = 11, 30.0  # It was compiled.
  throughput.begin()
  rates = []
  # The last two: an evaluation took time that is no training, and the run was rolled back.
  for step, seconds, acted in ((21, 32.0, 100.0), (31, 36.0, 300.0), (31, 36.0, 300.0),
                               (25, 40.0, 200.0)):
    run.step, run.training = step, seconds
    found = throughput.scalars({"environment_steps": acted, "loss": 1.0})
    assert found.pop("system/memory_mib") > 10.0
    rates.append(list(found.values()))
  assert rates == [[pytest.approx(320.0)], [pytest.approx(160.0), pytest.approx(50.0)], [], []]
