"""Random numbers for acting, which depend only on the seed and the place in the experience.

Noise whose steps depend on each other is a white signal of an episode's length that was filtered.
So no noise has a state, and a run that resumes goes on with the numbers that it would have had.
"""

import dataclasses
from collections.abc import Callable, Sequence

from replicator import UsageError
from replicator.errors import at_least_one, no_class

import gin
import numpy as np

_EPISODE, _NOISE, _RANDOM_ACTION, _EVALUATION = range(4)
_BLOCK = 64  # Steps whose numbers are drawn together. Another value changes all numbers.

Filter = Callable[[np.ndarray], np.ndarray]
"""Makes noise of t steps from white noise, both N(0, 1): float64 `[t, n, a] -> [t, n, a]`."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class PinkNoise:
  """Noise whose power falls with the frequency f as `f^-exponent`, down to 1 / t.

  Reference: Eberhard et al. 2023, "Pink noise is all you need".

  Attributes:
    exponent: 0 is white, 1 pink, and 2 red, which is a random walk.
  """

  exponent: float = 1.0

  def __call__(self, white: np.ndarray) -> np.ndarray:
    """See `Filter`."""
    frequency = np.maximum(np.abs(np.fft.fftfreq(len(white))), 1.0 / len(white))
    gain = frequency ** (-self.exponent / 2.0)
    gain /= np.sqrt(np.mean(np.square(gain)))
    return np.fft.ifft(np.fft.fft(white, axis=0) * gain[:, np.newaxis, np.newaxis], axis=0).real


@gin.configurable
@dataclasses.dataclass(frozen=True)
class OrnsteinUhlenbeck:
  """Noise that keeps `1 - theta` of itself from one step to the next, and adds what is missing.

  Reference: Lillicrap et al. 2016 (arXiv:1509.02971).

  Attributes:
    theta: the share that is forgotten in a step, above 0 and at most 1, which is white noise.
  """

  theta: float = 0.15

  def __post_init__(self):
    if not 0 < self.theta <= 1:
      raise UsageError(f"OrnsteinUhlenbeck.theta = {self.theta}: must be above 0, and at most 1")

  def __call__(self, white: np.ndarray) -> np.ndarray:
    """See `Filter`."""
    kept, noise = 1.0 - self.theta, white.copy()
    for t in range(1, len(noise)):
      noise[t] = kept * noise[t - 1] + np.sqrt(1.0 - kept ** 2) * white[t]
    return noise


@gin.configurable
@dataclasses.dataclass(frozen=True)
class HeldNoise:
  """Noise that stays for some steps, so that in between an action is a function of the state.

  A policy with a standard deviation s(x), as that of SAC, then acts with mean(x) + s(x) e, and e is
  N(0, 1) for each number of an action. That is generalized state-dependent exploration (Raffin et
  al. 2021, arXiv:2005.05719) with the deviation as the only feature of the state.

  Attributes:
    steps: how long it stays.
  """

  steps: int = 8

  def __post_init__(self):
    at_least_one("HeldNoise", steps=self.steps)

  def __call__(self, white: np.ndarray) -> np.ndarray:
    """See `Filter`."""
    return np.repeat(white[::self.steps], self.steps, axis=0)[:len(white)]


@gin.configurable(denylist=["noise_size"])
@dataclasses.dataclass(frozen=True)
class Exploration:
  """How an actor explores.

  Environment i of n acts with noise times `scale^(1 + i alpha / (n - 1))`, as the actors of Ape-X
  do (Horgan et al. 2018, arXiv:1803.00933). The agent's own `noise` multiplies it, too.

  Attributes:
    random_steps: environment steps at the start of a run whose actions are uniformly random.
    noise: a `Filter`, such as `@PinkNoise()`, `@OrnsteinUhlenbeck()` or `@HeldNoise()`; None for
      white noise. A filtered signal is as long as the longest episode, and does not end with one.
    scale: see above; or a number for each environment.
    alpha: see above; 0 for the same noise in all environments.
    noise_size: how many numbers of noise the policy takes for an action; None for the length of an
      action.
  """

  random_steps: int = 1000
  noise: Filter | None = None
  scale: float | Sequence[float] = 1.0
  alpha: float = 0.0
  noise_size: int | None = None

  def __post_init__(self):
    no_class("Exploration", noise=self.noise)
    if min(self.random_steps, self.alpha, np.min(self.scale)) < 0:
      raise UsageError(f"{self}: no number may be below 0")

  def scales(self, number: int) -> np.ndarray:
    """The factors on the noise of so many environments: float64 [number]."""
    if np.size(self.scale) not in (1, number):
      raise UsageError(f"Exploration.scale = {self.scale}: write a number, or one for each of "
                       f"Environments.number = {number}")
    if self.alpha and np.all(np.equal(self.scale, 1)):
      raise UsageError(f"Exploration.alpha = {self.alpha}: is an exponent of Exploration.scale, "
                       "and has no effect on 1; write a scale such as 0.4")
    exponents = 1.0 + self.alpha * np.arange(number) / max(number - 1, 1)
    return np.power(self.scale, exponents)


class ActionNoise:
  """Noise, random actions and episode seeds of a number of environments that step together.

  `episode_steps` is the length of filtered signals.
  """

  def __init__(self, seed: int, number: int, action_size: int, exploration: Exploration,
               episode_steps: int):
    self._seed = seed % 2**64
    self._shapes = {_NOISE: (number, exploration.noise_size or action_size),
                    _RANDOM_ACTION: (number, action_size)}
    self._filter, self._episode_steps = exploration.noise, episode_steps
    self._scales = exploration.scales(number).astype(np.float32)[:, np.newaxis]
    self._blocks: dict[int, tuple[int, np.ndarray]] = {}  # The newest block of each kind.

  def noise(self, step: int) -> np.ndarray:
    """The noise of a step: float32 `[number, noise_size]`, see `Exploration`."""
    return self._draw(_NOISE, step, _BLOCK if self._filter is None else self._episode_steps)

  def random_actions(self, step: int) -> np.ndarray:
    """Actions of a step, uniform in [-1, 1): float32 `[number, action_size]`."""
    return self._draw(_RANDOM_ACTION, step, _BLOCK)

  def episode_seed(self, environment: int, episode: int) -> int:
    """The seed of a training episode, below 2^32."""
    return _seed_of(_EPISODE, self._seed, environment, episode)

  def _draw(self, kind: int, step: int, length: int) -> np.ndarray:
    block, row = divmod(step, length)
    if self._blocks.get(kind, (-1,))[0] != block:
      generator = np.random.Generator(
          np.random.Philox(np.random.SeedSequence([kind, self._seed, block])))
      self._blocks[kind] = block, self._drawn(kind, generator, (length, *self._shapes[kind]))
    return self._blocks[kind][1][row]

  def _drawn(self, kind: int, generator: np.random.Generator, shape: tuple) -> np.ndarray:
    if kind == _RANDOM_ACTION:
      return 2 * generator.random(shape, np.float32) - 1
    noise = generator.standard_normal(shape, np.float32)
    if self._filter is not None:
      noise = self._filter(noise.astype(np.float64)).astype(np.float32)
    return noise * self._scales


def evaluation_seed(episode: int) -> int:
  """The seed of an evaluation's episode, below 2^32. It is the same in every run."""
  return _seed_of(_EVALUATION, episode)


def _seed_of(*numbers: int) -> int:
  return int(np.random.SeedSequence(numbers).generate_state(1)[0])
