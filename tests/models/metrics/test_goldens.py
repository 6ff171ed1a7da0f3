"""Every metric equals torch-fidelity's and `prdc`'s numbers, which `metric_parity` wrote.

`goldens.json` names the command and the versions of both packages.
"""

import json
import pathlib

import pytest

from benchmarks import metric_cases, metric_parity

GOLDENS = json.loads(pathlib.Path(__file__).with_name("goldens.json").read_text())
CASES = metric_cases.metric_cases()


def test_the_goldens_name_their_source():
  assert "metric_parity" in GOLDENS["source"]["command"]
  assert {"torch-fidelity", "prdc", "torch", "numpy"} <= set(GOLDENS["source"])
  assert set(GOLDENS["numbers"]) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_every_number_equals_the_references(name):
  found = metric_parity.ours(CASES[name])
  for metric, reference in GOLDENS["numbers"][name].items():
    comparison = metric_parity.Comparison(name, metric, reference, found[metric])
    assert comparison.difference <= comparison.allowed, comparison
