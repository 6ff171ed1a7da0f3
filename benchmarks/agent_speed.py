"""Environment steps per CPU second of SAC, with an update for each, against PyTorch.

  python -m benchmarks.agent_speed [--task=pendulum]

Each contender acts, stores transitions and learns from them, with batches of 256. On the pendulum,
the policy has hidden layers of 64 and 64 units, and each of the two critics 128 and 128; on the
walker, all have 256 and 256. A contender with an 8 acts in eight environments, and makes eight
updates after each step of all.

  ours, ours_8   `experiments.sac` with its configuration, which has layer normalization
  sb3, sb3_8     Stable-Baselines3's `SAC`, without layer normalization
  torch          a plain PyTorch loop, one environment, without it; see `benchmarks.sac_torch`

They take turns, each in its own process. The table has medians over the turns of CPU seconds, which
other work on the machine affects less than wall time.
"""

import statistics
import sys
from collections.abc import Callable

from benchmarks import turns
from benchmarks.record import Table

from absl import app, flags

FLAGS = flags.FLAGS
_TASKS = {"pendulum": ("Pendulum-v1", (64, 64), (128, 128)),
          "walker": ("dm_control/walker-walk-v0", (256, 256), (256, 256))}
flags.DEFINE_enum("task", "pendulum", list(_TASKS), "Where they act.")
flags.DEFINE_integer("rounds", 9, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("steps", 800, "Environment steps of a turn, in eights and in tens.")
flags.register_validator("steps", lambda steps: steps > 0 and steps % 40 == 0,
                         "must be a multiple of 40")
turns.define_flags(["ours", "ours_8", "sb3", "sb3_8", "torch"])

_START = 1000  # Environment steps before the first update.
_PER_CALL = 10  # Our updates in a compiled call.


def ours(number: int) -> Callable[[], float]:
  """Returns a function that takes a turn of `experiments.sac`, and returns the last loss."""

  from experiments.sac import SAC
  from models.rl import agents
  from models.rl.environments.environments import Environments
  from replicator.app.config import parse
  from replicator.step import context
  from replicator.strategies.compiled_step import CompiledStep
  from replicator.strategies.replicator import Replicator

  name, policy, critic = _TASKS[FLAGS.task]
  parse(["configs/sac.gin"], [
      f"Environments.name = '{name}'", f"Environments.number = {number}",
      f"Policy.sizes = {policy}", f"Critic.sizes = {critic}", "Replay.capacity = 100_000"])
  context.run.global_batch_size = 256
  replicator = Replicator()
  with replicator.scope():
    agent = SAC(Environments())
  limiter = agents.RateLimiter()
  function = CompiledStep(replicator, agent, _PER_CALL, logs=True)
  updates = 0

  def turn() -> float:
    nonlocal updates
    for _ in range(FLAGS.steps // _PER_CALL):
      agent.actor.collect(agent.act, limiter.environment_steps(updates))
      scalars, _ = function(updates, None).fetch()
      updates += _PER_CALL
    return float(next(iter(scalars.values()))[-1])

  return turn


def sb3(number: int) -> Callable[[], float]:
  """Returns a function that takes a turn of Stable-Baselines3, and returns 0."""
  sys.modules["tensorboard"] = None  # type: ignore[assignment]  # It would import TensorFlow, too.
  import gymnasium
  import stable_baselines3
  from stable_baselines3.common.env_util import make_vec_env

  name, policy, critic = _TASKS[FLAGS.task]
  if name.startswith("dm_control"):
    import shimmy  # noqa: F401
  environments = make_vec_env(name, number, wrapper_class=gymnasium.wrappers.FlattenObservation)
  agent = stable_baselines3.SAC(
      "MlpPolicy", environments, learning_starts=_START, train_freq=1, gradient_steps=-1,
      buffer_size=100_000, device="cpu", seed=0,
      policy_kwargs={"net_arch": {"pi": list(policy), "qf": list(critic)}})
  agent.learn(_START)

  def turn() -> float:
    agent.learn(FLAGS.steps, reset_num_timesteps=False)
    return 0.0

  return turn


def torch(number: int) -> Callable[[], float]:
  """Returns a function that takes a turn of the plain loop, and returns the last loss."""
  from benchmarks import sac_torch

  import gymnasium

  name, policy, critic = _TASKS[FLAGS.task]
  if name.startswith("dm_control"):
    import shimmy  # noqa: F401
  environment = gymnasium.wrappers.FlattenObservation(gymnasium.make(name))
  take = sac_torch.loop(environment, policy, critic, _START)
  return lambda: take(FLAGS.steps)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    turns.set_threads()
    make = {"ours": ours, "sb3": sb3, "torch": torch}[FLAGS.contender.removesuffix("_8")]
    turns.take(make(8 if FLAGS.contender.endswith("8") else 1), calls=1)
    return
  turns.hide_gpus()
  names = turns.installed({"ours": "tensorflow", "ours_8": "tensorflow",
                           "sb3": "stable_baselines3", "sb3_8": "stable_baselines3",
                           "torch": "torch"})
  contenders = turns.run("benchmarks.agent_speed", names, FLAGS.rounds, FLAGS.threads)
  table = Table(f"SAC on the {FLAGS.task}, {FLAGS.rounds} turns of {FLAGS.steps} steps, an update "
                "for each",
                {"steps per CPU second": ".1f", "steps per second": ".1f"})
  for contender in contenders:
    # The CPU seconds of the first turn do not count.
    cpu, seconds = map(statistics.median, (contender.cpu[1:], contender.seconds))
    table.add(contender.name, FLAGS.steps / cpu, FLAGS.steps / seconds)


if __name__ == "__main__":
  app.run(main)
