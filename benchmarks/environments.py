"""Makes a table of the environments, in common packages, in which agents can be trained.

  python -m benchmarks.environments [--families=classic,toy,mujoco,minatar,atari,dm_control]

Each environment takes some random steps, and then a suitable agent takes a few training steps with
small networks, not compiled: SAC for continuous actions, otherwise DQN. Atari and MinAtar games use
the settings of their configurations. Failures are shown with the error message that a user would
see. Families whose package is not installed are skipped. If an environment crashes its process, a
new process continues with the next ones.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.record import Table

from absl import app, flags

FLAGS = flags.FLAGS
_PACKAGES = {"classic": "gymnasium", "toy": "gymnasium", "mujoco": "mujoco",
             "minatar": "minatar.gym", "atari": "ale_py", "dm_control": "shimmy"}
flags.DEFINE_list("families", list(_PACKAGES), "Which of them.")
flags.DEFINE_integer("steps", 200, "Random steps in each environment.", lower_bound=1)
flags.DEFINE_integer("updates", 20, "Training steps in each environment.", lower_bound=1)
flags.DEFINE_string("only", "", "The environments whose names have these letters.")
flags.DEFINE_bool("child", False, "Read names from stdin, and print what is found as JSON.")

_OWN = {
    "atari": ["Environments.kwargs = {'frameskip': 1}", "Environments.wrappers = {"
              "'gymnasium.wrappers:AtariPreprocessing': {'grayscale_newaxis': True}}"],
    "minatar": ["image_torso.convolutions = ((16, 3, 1),)", "Environments.wrappers = "
                "{'models.rl.environments.fresh_episodes:FreshEpisodes': {}}"]}
_SMALL = ["train.global_batch_size = 8", "train.steps_per_call = 1", "train.log_every = 1000",
          "train.eval_every = 0", "train.checkpoint_every = 0", "Replicator.jit_compile = False",
          "RateLimiter.learning_starts = 30", "RateLimiter.update_ratio = 1.0",
          "Replay.capacity = 500"]
_NETWORKS = {"sac": ["Policy.sizes = (16,)", "Critic.sizes = (16,)"],
             "dqn": ["ActionValues.sizes = (16, 16)", "linear.final = 0.1", "linear.end = 100"]}


def names(family: str) -> list[str]:
  """The names of the environments of a family, of each the newest version, as a user writes them.
  """
  try:
    module = importlib.import_module(_PACKAGES[family])
  except ImportError:
    return []
  if family == "minatar":
    module.register_envs()
  from gymnasium import registry
  here = {"classic": lambda spec: "classic_control" in str(spec.entry_point),
          "toy": lambda spec: "toy_text" in str(spec.entry_point),
          "mujoco": lambda spec: "envs.mujoco" in str(spec.entry_point) and spec.version == 5,
          "minatar": lambda spec: spec.id.startswith("MinAtar/"),
          "atari": lambda spec: spec.id.startswith("ALE/"),
          "dm_control": lambda spec: (spec.id.startswith("dm_control/")
                                      and "compatibility" not in spec.id)}[family]
  newest: dict[str, Any] = {}
  for spec in registry.values():
    key = spec.id.rpartition("-v")[0]
    if here(spec) and (key not in newest or newest[key].version < spec.version):
      newest[key] = spec
  prefix = f"{_PACKAGES[family]}:" if family in ("minatar", "atari") else ""
  return [f"{prefix}{spec.id}" for spec in newest.values() if FLAGS.only in spec.id]


# ---- In a process of its own --------------------------------------------------------------------


def look(name: str, family: str) -> dict[str, Any]:
  """Tests an environment; returns its sizes and speed, the agent, and any error message."""
  from replicator.app.config import parse
  from replicator.errors import first_line

  found: dict[str, Any] = {"name": name, "family": family}
  own = [f"Environments.name = '{name}'", *_OWN.get(family, [])]
  try:
    import experiments.dqn
    import experiments.sac
    from models.rl.environments.environments import Environments
    parse([], own)
    environments = Environments()
    found["observation"] = list(environments.observation_shape)
    found["actions"] = environments.action_size
    found["speed"] = at_random(environments)
    agent = "dqn" if environments.discrete else "sac"
    found["agent"] = agent.upper()
    files = {"dqn": "configs/dqn.gin", "sac": "configs/sac.gin"}
    parse([files[agent]], [*own, *_SMALL, *_NETWORKS[agent], f"train.steps = {FLAGS.updates}"])
    main = {"dqn": experiments.dqn.dqn, "sac": experiments.sac.sac}[agent]
    with tempfile.TemporaryDirectory() as workdir:
      main(workdir)
  except Exception as error:
    found["error"] = first_line(error)
  return found


def at_random(environments: Any) -> float:
  """Returns steps per second with random actions; raises a RuntimeError with any error message."""
  import numpy as np
  draw = np.random.default_rng(0)
  _, failures = environments.reset({0: 0})
  begun = time.perf_counter()
  for step in range(FLAGS.steps):
    if failures:
      raise RuntimeError(failures[0])
    actions = draw.uniform(-1, 1, [1, environments.action_size]).astype(np.float32)
    outcome = environments.step(actions)
    failures = outcome.failures
    if (outcome.terminated | outcome.truncated)[0] and not failures:
      _, failures = environments.reset({0: step + 1})
  if failures:
    raise RuntimeError(failures[0])
  seconds = time.perf_counter() - begun
  environments.close()
  return FLAGS.steps / seconds


def child() -> None:
  """Looks at the environments that stdin names."""
  import replicator  # noqa: F401  (before TensorFlow, so that it is quiet)

  import tensorflow as tf
  tf.config.run_functions_eagerly(True)  # To compile takes longer than the few steps.
  for line in sys.stdin.read().splitlines():
    family, name = line.split("\t")
    print(json.dumps(look(name, family)), flush=True)


# ---- The table ----------------------------------------------------------------------------------


def looked_at(waiting: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
  """What is found of environments, by family and name, in processes that go on to the next."""
  waiting = list(waiting)
  while waiting:
    command = [sys.executable, "-m", "benchmarks.environments", "--child",
               f"--steps={FLAGS.steps}", f"--updates={FLAGS.updates}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
      assert process.stdin and process.stdout
      process.stdin.write("\n".join("\t".join(each) for each in waiting))
      process.stdin.close()
      for line in process.stdout:
        if line.startswith('{"name"'):
          waiting.pop(0)
          yield json.loads(line)
    if waiting:
      family, name = waiting.pop(0)
      yield {"name": name, "family": family,
             "error": f"ends its process with status {process.returncode}"}


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.child:
    child()
    return
  waiting = [(family, name) for family in FLAGS.families for name in names(family)]
  each_one = Table("each environment", {"observation": "", "actions": "", "random steps/s": ",.0f",
                                        "training": ""}, "environment")
  by_family: dict[str, list[dict[str, Any]]] = {}
  for found in looked_at(waiting):
    each_one.add(found["name"], " x ".join(map(str, found.get("observation", []))),
                 str(found.get("actions", "")), found.get("speed"),
                 found.get("error") or f"trained, {found['agent']}")
    by_family.setdefault(found["family"], []).append(found)
  families = Table("environments by family", {"tried": "d", "trained": "d", "failures": ""},
                   "family")
  for family, all_of in by_family.items():
    failed = [found["name"] for found in all_of if "error" in found]
    families.add(family, len(all_of), len(all_of) - len(failed), ", ".join(failed))


if __name__ == "__main__":
  app.run(main)
