"""Benchmarks of steps run at their smallest size, and print their tables."""

from tests.programs.processes import python

import pytest

SMALLEST = {
    "agent_speed": "--rounds=1 --steps=40",
    "collectives_scaling": "--replicas=2 --kib=4 --turns=1",
    "d4pg_step": "--rounds=1 --steps=10",
    "environments": "--families=toy --only=Frozen --steps=3 --updates=1",
    "memory_ways": "--batch_size=4 --width=8 --steps=1",
    "penalty_step": "--rounds=1 --steps=1 --widths=8,8 --batch_size=4",
    "replication_overhead": "--rounds=1 --calls=1 --steps=2 --table=0",
    "resnet_step": "--rounds=1 --steps=1 --size=32 --batch_size=2",
    "self_supervision_gradients": "",
    "sngan_step": "--rounds=1 --steps=1 --width_multiplier=0.125 --batch_size=8",
    "step_memory": "--of=microbatch --batch_size=4 --steps=1 --n=1"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_it_runs(name):
  printed = python("-m", f"benchmarks.{name}", *SMALLEST[name].split()).stdout.splitlines()
  assert len(printed) > 2
