"""Fresh episodes: an environment is made again where an episode would depend on the one before."""

from typing import Any

import gymnasium


class FreshEpisodes(gymnasium.Wrapper):
  """Makes the environment again for each episode, which a run can then replay from its seed.

  The sticky actions of MinAtar need it: the last action of an episode may be the first of the next.

      Environments.wrappers = {'models.rl.environments.fresh_episodes:FreshEpisodes': {}}
  """

  def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Makes the environment, and begins an episode with Gymnasium's `options`."""
    spec = self.env.spec
    assert spec is not None  # `Environments` makes all by their specifications.
    self.env.close()
    self.env = spec.make()
    return self.env.reset(**options)
