"""Optimizers with sharded state in several processes, against the same ones without sharding.

    replicator launch --workers=4 -- python -m tests.programs.sharded_optimizers

trains 20 steps in float64 with every optimizer that can be sharded.
"""

import functools

from replicator import Replicator
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.test_sharded import OPTIMIZERS, all_close, state_of

import keras


def main() -> None:
  keras.config.set_floatx("float64")
  cluster = functools.partial(Replicator, "multi_worker_mirrored")  # Each counts its own steps.
  worker, workers = cluster().worker_id, cluster().num_pipelines
  small.BATCH = {name: x[worker::workers] for name, x in small.BATCH.items()}
  options = {"clip_norm": 0.5, "ema_decay": 0.75, "every": 2}
  for make in OPTIMIZERS.values():
    expected, unsharded = small.train(cluster(), make, 20, **options)
    actual, sharded = small.train(cluster(), make, 20, sharded=True, **options)
    all_close(actual, expected, 1e-13)
    all_close(state_of(sharded), state_of(unsharded), 1e-13)
  print(f"checked {len(OPTIMIZERS)} optimizers on {workers} workers")


if __name__ == "__main__":
  main()
