"""Every metric equals torch-fidelity's and `prdc`'s numbers, which `metric_parity` wrote.

`goldens.json` names the command and the versions of both packages.
"""

import json
import pathlib

from benchmarks import metric_cases, metric_parity

GOLDENS = json.loads(pathlib.Path(__file__).with_name("goldens.json").read_text())
COMPARISONS = metric_parity.compare(GOLDENS["numbers"])


def test_every_case_and_every_number_has_a_golden():
  cases = metric_cases.metric_cases()
  assert set(GOLDENS["numbers"]) == set(cases) and len(cases) == 6
  assert len(COMPARISONS) == 6 * len(metric_parity.ours(cases["ties"])) == 6 * 14


def test_every_number_equals_the_references():
  assert not [each for each in COMPARISONS if not each.difference <= each.allowed]
