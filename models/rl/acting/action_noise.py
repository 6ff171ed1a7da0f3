"""Random numbers for acting, which depend only on the seed and the place in the experience."""

import numpy as np

_EPISODE, _NOISE, _RANDOM_ACTION, _EVALUATION = range(4)
_BLOCK = 64  # Steps whose numbers are drawn together. Another value changes all numbers.


class ActionNoise:
  """Noise, random actions and episode seeds of n environments that step together.

  Args:
    seed: any integer.
    number: n.
    action_size: length of an action.
  """

  def __init__(self, seed: int, number: int, action_size: int):
    self._seed = seed % 2**64
    self._shape = (_BLOCK, number, action_size)
    self._blocks: dict[int, tuple[int, np.ndarray]] = {}  # The newest block of each kind.

  def noise(self, step: int) -> np.ndarray:
    """Standard normal numbers of a step: float32 `[number, action_size]`."""
    return self._draw(_NOISE, step)

  def random_actions(self, step: int) -> np.ndarray:
    """Actions of a step, uniform in [-1, 1): float32 `[number, action_size]`."""
    return self._draw(_RANDOM_ACTION, step)

  def episode_seed(self, environment: int, episode: int) -> int:
    """The seed of a training episode, below 2^32."""
    return _seed_of(_EPISODE, self._seed, environment, episode)

  def _draw(self, kind: int, step: int) -> np.ndarray:
    block, row = divmod(step, _BLOCK)
    if self._blocks.get(kind, (-1,))[0] != block:
      generator = np.random.Generator(
          np.random.Philox(np.random.SeedSequence([kind, self._seed, block])))
      drawn = (generator.standard_normal(self._shape, np.float32) if kind == _NOISE
               else 2 * generator.random(self._shape, np.float32) - 1)
      self._blocks[kind] = block, drawn
    return self._blocks[kind][1][row]


def evaluation_seed(episode: int) -> int:
  """The seed of an evaluation's episode, below 2^32. It is the same in every run."""
  return _seed_of(_EVALUATION, episode)


def _seed_of(*numbers: int) -> int:
  return int(np.random.SeedSequence(numbers).generate_state(1)[0])
