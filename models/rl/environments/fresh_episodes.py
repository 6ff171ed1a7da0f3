"""A wrapper for environments whose episodes depend on the previous episode."""

from typing import Any

import gymnasium


class FreshEpisodes(gymnasium.Wrapper):
  """Wrapper that remakes the environment for each episode, which then depends only on its seed.

  MinAtar's sticky actions need it: an episode's last action may be repeated in the next episode.

      Environments.wrappers = {'models.rl.environments.fresh_episodes:FreshEpisodes': {}}
  """

  def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Makes the environment, and starts an episode with Gymnasium's `options`."""
    spec = self.env.spec
    assert spec is not None  # `Environments` makes all from specifications.
    self.env.close()
    self.env = spec.make()
    return self.env.reset(**options)
