"""Random numbers for acting, which depend only on the seed and the step.

Correlated noise is a filtered white signal of an episode's length. So noise has no state, and a
resumed run continues with the same numbers.
"""

import dataclasses
from collections.abc import Callable, Sequence

from replicator import UsageError
from replicator.errors import at_least_one

import gin
import numpy as np

_EPISODE, _NOISE, _RANDOM_ACTION, _EVALUATION, _EVALUATION_NOISE = range(5)
_BLOCK = 64  # Steps whose numbers are drawn together. Changing it changes all numbers.
_LONGEST_SIGNAL = 100_000  # Steps of filtered noise, which is kept in memory as a whole.

Filter = Callable[[np.ndarray], np.ndarray]
"""Filters white noise of t steps, N(0, 1) before and after: float64 `[t, n, a] -> [t, n, a]`."""


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
  """Noise that keeps `1 - theta` of its value at each step, plus new noise for unit variance.

  Reference: Lillicrap et al. 2016 (arXiv:1509.02971).

  Attributes:
    theta: the fraction forgotten at each step, above 0 and at most 1, which is white noise.
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
  """Noise that is held for some steps, during which an action is a function of the state.

  A policy with a standard deviation s(x), like SAC's, then acts with mean(x) + s(x) e, where e is
  N(0, 1) for each action dimension. That is generalized state-dependent exploration (Raffin et al.
  2021, arXiv:2005.05719) with the deviation as the only feature of the state.

  Attributes:
    steps: number of steps for which it is held.
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
  """Settings of an actor's exploration.

  Noise in environment i of n is multiplied by `scale^(1 + i alpha / (n - 1))`, as in Ape-X (Horgan
  et al. 2018, arXiv:1803.00933), and also by the agent's own `noise`.

  Attributes:
    random_steps: environment steps at the start of a run whose actions are uniformly random, see
      `RateLimiter`.
    noise: a `Filter`, such as `@PinkNoise()`, `@OrnsteinUhlenbeck()` or `@HeldNoise()`; None for
      white noise. A filtered signal is as long as the longest episode, and continues across
      episodes.
    scale: see above; or a number for each environment.
    alpha: see above; 0 for the same noise in all environments.
    noise_size: length of the policy's noise for an action; None for the length of an action.
  """

  random_steps: int = 1000
  noise: Filter | None = None
  scale: float | Sequence[float] = 1.0
  alpha: float = 0.0
  noise_size: int | None = None

  def __post_init__(self):
    if min(self.random_steps, self.alpha, np.min(self.scale)) < 0:
      raise UsageError(f"{self}: no number may be negative")

  def scales(self, number: int) -> np.ndarray:
    """Returns the factors on the noise of each environment: float64 [number]."""
    if np.size(self.scale) not in (1, number):
      raise UsageError(f"Exploration.scale = {self.scale}: write a number, or one for each of "
                       f"Environments.number = {number}")
    if self.alpha and np.all(np.equal(self.scale, 1)):
      raise UsageError(f"Exploration.alpha = {self.alpha}: is an exponent of Exploration.scale, "
                       "and has no effect on 1; set a scale such as 0.4")
    exponents = 1.0 + self.alpha * np.arange(number) / max(number - 1, 1)
    return np.power(self.scale, exponents)


class ActionNoise:
  """Noise, random actions and episode seeds of environments that step together.

  `max_episode_steps` is the length of filtered signals, up to 100,000.
  """

  def __init__(self, seed: int, number: int, action_size: int, exploration: Exploration,
               max_episode_steps: int):
    self._seed = seed % 2**64
    self._shapes = {_NOISE: (number, exploration.noise_size or action_size),
                    _RANDOM_ACTION: (number, action_size)}
    self._filter, self._signal_steps = exploration.noise, min(max_episode_steps, _LONGEST_SIGNAL)
    self._scales = exploration.scales(number).astype(np.float32)[:, np.newaxis]
    self._blocks: dict[int, tuple[int, np.ndarray]] = {}  # The newest block of each kind.

  def noise(self, step: int) -> np.ndarray:
    """Returns the noise of a step: float32 `[number, noise_size]`, see `Exploration`."""
    return self._draw(_NOISE, step, _BLOCK if self._filter is None else self._signal_steps)

  def random_actions(self, step: int) -> np.ndarray:
    """Returns actions of a step, uniform in [-1, 1): float32 `[number, action_size]`."""
    return self._draw(_RANDOM_ACTION, step, _BLOCK)

  def episode_seed(self, environment: int, episode: int) -> int:
    """Returns the seed of a training episode, below 2^31, because of some simulators' limits."""
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
  """Returns the seed of an evaluation's episode, below 2^31. It is the same in every run."""
  return _seed_of(_EVALUATION, episode)


def evaluation_noise(episode: int) -> np.random.Generator:
  """Returns the noise generator of an evaluation's episode. It is the same in every run."""
  return np.random.default_rng([_EVALUATION_NOISE, episode])


def _seed_of(*numbers: int) -> int:
  return int(np.random.SeedSequence(numbers).generate_state(1)[0]) % 2**31
