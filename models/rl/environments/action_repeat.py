"""Action repeat: an agent decides at every k-th step of an environment."""

from typing import Any

from models.rl.environments.wrapper import DEFAULT_FPS
from replicator.errors import at_least_one

import gymnasium


class ActionRepeat(gymnasium.Wrapper):
  """Repeats each action, and adds up the rewards, until the episode ends.

      Environments.wrappers = {
          'models.rl.environments.action_repeat:ActionRepeat': {'repeat': 2}}

  Args:
    env: an environment.
    repeat: steps of the environment for each action.

  Raises:
    UsageError: the number is less than 1.
  """

  def __init__(self, env: gymnasium.Env, repeat: int):
    at_least_one("ActionRepeat", repeat=repeat)
    super().__init__(env)
    self._repeat = repeat
    # A decision takes more time in the world, which films show.
    fps = env.metadata.get("render_fps") or DEFAULT_FPS
    self.metadata = {**env.metadata, "render_fps": fps / repeat}
    if env.has_wrapper_attr("dt"):  # As DM Control's have.
      self.dt = env.get_wrapper_attr("dt") * repeat

  def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Takes the steps; the observation is the last one."""
    total = 0.0
    for _ in range(self._repeat):
      observation, reward, terminated, truncated, info = self.env.step(action)
      total += float(reward)
      if terminated or truncated:
        break
    return observation, total, terminated, truncated, info
