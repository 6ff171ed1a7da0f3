"""Learner steps per second of D4PG, with sampling from the replay, against its peers.

  python -m benchmarks.d4pg_step [--check] [--replicas=2]

One step is an update of the critic and one of the policy, from a batch of 256 transitions of 5
steps. The networks are those of Acme; observations have 24 numbers, actions 6, and the replay has
100,000 rows. `benchmarks.d4pg_problem` has the details.

  ours     `benchmarks.d4pg_ours`, `experiments.d4pg` under XLA: 10 steps in a call, replay in
           TensorFlow variables
  keras    `benchmarks.d4pg_keras`, plain Keras 3 in a tf.function, replay in NumPy
  pytorch  `benchmarks.d4pg_torch`, compiled, with fused Adam, replay in NumPy
  jax      `benchmarks.d4pg_jax`, jitted: 10 steps in a call, replay in arrays of the device
  products `benchmarks.d4pg_products`, the matrix products of a step alone, under XLA as ours

Contenders whose package is not installed are skipped. Each runs in its own process, and they take
turns. The table has medians over the turns, and ratios of these medians.

With --replicas=2, `ours` is instead compared with itself without XLA (`no_xla`), both on 2 logical
CPUs.

With --check, the contenders instead make the same updates, from the same weights on the same
batches, and the table shows how their results differ from plain Keras.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import types

from benchmarks import d4pg_problem as problem
from benchmarks import turns
from benchmarks.record import Table

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 15, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("steps", 50, f"Steps of one turn; a multiple of {problem.STEPS_PER_CALL}.",
                     lower_bound=problem.STEPS_PER_CALL)
flags.DEFINE_integer("replicas", 1, "Compare ours with and without XLA on so many logical CPUs.",
                     lower_bound=1)
flags.DEFINE_bool("check", False, "Compare what the contenders compute, not their speed.")
turns.define_flags(["ours", "no_xla", "keras", "pytorch", "jax", "products"])
flags.DEFINE_string("results", None, "With --check and --contender: the file to write.")
flags.register_validator("steps", lambda steps: steps % problem.STEPS_PER_CALL == 0,
                         f"must be a multiple of {problem.STEPS_PER_CALL}")

_PACKAGES = {"ours": "tensorflow", "keras": "tensorflow", "pytorch": "torch", "jax": "jax"}
_MODULES = {"ours": "d4pg_ours", "no_xla": "d4pg_ours", "keras": "d4pg_keras",
            "pytorch": "d4pg_torch", "jax": "d4pg_jax", "products": "d4pg_products"}
_UPDATES = 3  # Updates of --check. Later ones amplify rounding errors.


def contender() -> types.ModuleType:
  """Sets the threads of this process's contender; returns its module."""
  if FLAGS.contender != "jax":
    turns.set_threads()
  return importlib.import_module(f"benchmarks.{_MODULES[FLAGS.contender]}")


def take_turns() -> None:
  """Runs in a contender's process: takes turns on request."""
  module, rows = contender(), problem.rows()
  if FLAGS.contender in ("keras", "pytorch"):
    steps = problem.with_numpy_replay(module.Learner().update, rows)
  else:
    options = ({"replicas": FLAGS.replicas, "jit_compile": FLAGS.contender == "ours"}
               if _MODULES[FLAGS.contender] == "d4pg_ours" else {})
    steps = module.make_steps(rows, **options)
  turns.take(steps, FLAGS.steps // problem.STEPS_PER_CALL)


def write_results() -> None:
  """Runs in a contender's process with --check: writes losses and final weights."""
  learner = contender().Learner()
  losses = [learner.update(batch) for batch in problem.batches(_UPDATES)]
  weights = np.concatenate([w.ravel() for w in learner.weights()])
  np.savez(FLAGS.results, losses=losses, weights=weights)


def check(names: list[str]) -> None:
  """Prints the differences of losses and of weight changes from those of plain Keras."""
  results = {}
  with tempfile.TemporaryDirectory() as folder:
    for name in names:
      path = os.path.join(folder, f"{name}.npz")
      subprocess.run([sys.executable, "-m", "benchmarks.d4pg_step", "--check",
                      f"--contender={name}", f"--results={path}"], check=True)
      with np.load(path) as arrays:
        results[name] = dict(arrays)
  first = np.concatenate([w.ravel() for w in problem.policy_weights() + problem.critic_weights()])
  expected = results["keras"]
  table = Table(f"after {_UPDATES} updates, the relative difference from plain Keras",
                {"losses": ".1e", "change of the weights": ".1e"})
  for name, result in results.items():
    losses = np.abs(result["losses"] / expected["losses"] - 1.0).max()
    change = (np.linalg.norm(result["weights"] - expected["weights"])
              / np.linalg.norm(expected["weights"] - first))
    table.add(name, losses, change)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    if FLAGS.check:
      write_results()
    else:
      take_turns()
    return
  turns.hide_gpus()
  names = turns.installed(_PACKAGES) if FLAGS.replicas == 1 else ["ours", "no_xla"]
  if FLAGS.check:
    check(names)
    return
  names += ["products"] * (FLAGS.replicas == 1)
  turns.compare("benchmarks.d4pg_step", names, FLAGS.rounds, FLAGS.threads,
                amount=FLAGS.steps, unit="steps",
                title=f"D4PG learner, batch {problem.BATCH_SIZE}, replicas: {FLAGS.replicas}, "
                      f"turns of {FLAGS.steps} steps")


if __name__ == "__main__":
  app.run(main)
