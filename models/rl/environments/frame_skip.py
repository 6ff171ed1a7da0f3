"""The number of simulator frames per step of an environment."""

from typing import Any

import gymnasium
from gymnasium.wrappers import AtariPreprocessing, MaxAndSkipObservation


def frames_per_step(env: gymnasium.Env) -> int:
  """Returns the number of simulator frames per action.

  It handles the wrappers of Gymnasium and of this project that repeat actions, the Arcade Learning
  Environment, and any wrapper or environment with an attribute `frames_per_step`. If an episode
  ends within an action's frames, all of them count.
  """
  frames = _own(env)
  while isinstance(env, gymnasium.Wrapper):
    env = env.env
    frames *= _own(env)
  return frames


def _own(env: Any) -> int:
  """Returns the factor of a single wrapper or environment."""
  if isinstance(env, AtariPreprocessing):
    return env.frame_skip
  if isinstance(env, MaxAndSkipObservation) and env.spec:
    return (env.spec.additional_wrappers[-1].kwargs or {}).get("skip", 4)
  if type(env).__module__.partition(".")[0] == "ale_py" and env.spec:
    skip = env.spec.kwargs.get("frameskip", 1)
    # Two numbers are arguments of `range`, from which each step draws a value.
    return skip if isinstance(skip, int) else round((skip[0] + skip[1] - 1) / 2)
  return getattr(env, "frames_per_step", 1)
