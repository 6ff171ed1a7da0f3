"""Repeats all measurements of speed, size and equality, and updates the documentation.

  python -m benchmarks [--only=start,sngan_step]

Takes hours, or minutes with `--only`, on a machine that should do nothing else. Each benchmark
writes a record in `benchmarks/results/`; `slow_network` needs root. Training runs have separate
commands, on the pages.
"""

import subprocess
import sys

from benchmarks import pages, plots

from absl import app, flags

RECORDS: dict[str, list[str]] = {  # The command of each record.
    "strategy_equality": ["strategy_equality"],
    "strategy_equality_float32": ["strategy_equality", "--precision=float32"],
    "start": ["start", "--turns=3"],
    "first_steps": ["first_steps"],
    "environments": ["environments"],
    "slow_network": ["slow_network"],
    "memory_ways": ["memory_ways"],
    "memory_limit": ["memory_ways", "--width=2048", "--batch_size=16", "--steps=1",
                     "--of=none,sharded state", "--limit_mib=5400"],
    "sharded_memory": ["large_step", "--memory", "--replicas=2,4,8", "--processes=2,4"],
    "collectives": ["collectives_scaling", "--turns=5"],
    "reliability_cost": ["reliability_cost"],
    "replication_overhead": ["replication_overhead"],
    "sngan_step": ["sngan_step"],
    "d4pg_step": ["d4pg_step"],
    "agent_speed": ["agent_speed", "--threads=1", "--rounds=7", "--steps=400"],
    "microbatch": ["step_memory", "--of=microbatch"],
    "recompute": ["step_memory", "--of=recompute"]}

FLAGS = flags.FLAGS
flags.DEFINE_list("only", list(RECORDS), "The records.")


def main(argv: list[str]) -> None:
  del argv
  for name in FLAGS.only:
    program, *options = RECORDS[name]
    print(f"\n---- {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{program}", *options, f"--record={name}"],
                   check=True)
  pages.main()
  plots.main([])


if __name__ == "__main__":
  app.run(main)
