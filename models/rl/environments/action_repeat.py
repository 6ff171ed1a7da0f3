"""Action repeat: an agent chooses an action at every k-th step of an environment."""

from typing import Any

from models.rl.environments.wrapper import DEFAULT_FPS
from replicator.errors import at_least_one

import gymnasium


class ActionRepeat(gymnasium.Wrapper):
  """Wrapper that repeats each action and sums the rewards, until the episode ends.

      Environments.wrappers = {
          'models.rl.environments.action_repeat:ActionRepeat': {'repeat': 2}}

  Args:
    env: an environment.
    repeat: steps of the environment for each action.

  Attributes:
    frames_per_step: `repeat`; see `frame_skip`.

  Raises:
    UsageError: `repeat` is below 1.
  """

  def __init__(self, env: gymnasium.Env, repeat: int):
    at_least_one("ActionRepeat", repeat=repeat)
    super().__init__(env)
    self.frames_per_step = repeat
    # A step takes more simulated time, so that films keep real time.
    fps = env.metadata.get("render_fps") or DEFAULT_FPS
    self.metadata = {**env.metadata, "render_fps": fps / repeat}
    if env.has_wrapper_attr("dt"):  # As in DM Control.
      self.dt = env.get_wrapper_attr("dt") * repeat

  def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Takes the steps; returns the last observation and the sum of the rewards."""
    total = 0.0
    for _ in range(self.frames_per_step):
      observation, reward, terminated, truncated, info = self.env.step(action)
      total += float(reward)
      if terminated or truncated:
        break
    return observation, total, terminated, truncated, info
