"""The problem of `benchmarks.d4pg_step`: sizes, initial weights and experience.

D4PG (Barth-Maron et al. 2018) with the networks and learner settings of Acme.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

BATCH_SIZE = 256
OBSERVATION_SIZE = 24
ACTION_SIZE = 6
POLICY_SIZES = (256, 256, 256)
CRITIC_SIZES = (512, 512, 256)
NUM_ATOMS = 51
V_MAX = 150.0
ATOMS = np.linspace(-V_MAX, V_MAX, NUM_ATOMS, dtype=np.float32)
N_STEP = 5
DISCOUNT = 0.99
LEARNING_RATE = 1e-4
ADAM_EPSILON = 1e-14  # Too small to matter: PyTorch adds it at a different place.
CLIP_NORM = 40.0
TARGET_PERIOD = 100
LAYER_NORM_EPSILON = 1e-5
ROWS = 100_000
STEPS_PER_CALL = 10  # For contenders that can take several.


class Rows(NamedTuple):
  """The experience of one environment, in order."""

  observation: np.ndarray  # float32 [m, 24]
  action: np.ndarray  # float32 [m, 6]
  reward: np.ndarray  # float32 [m]
  terminated: np.ndarray  # bool [m]


class Batch(NamedTuple):
  """Transitions of n steps."""

  observation: np.ndarray  # float32 [n, 24]
  action: np.ndarray  # float32 [n, 6]
  reward: np.ndarray  # float32 [n], the discounted sum
  discount: np.ndarray  # float32 [n], 0 where the episode terminated
  next_observation: np.ndarray  # float32 [n, 24]


def rows() -> Rows:
  """Random experience, in which one moment in 200 terminates an episode."""
  random = np.random.default_rng(0)
  return Rows(random.standard_normal([ROWS, OBSERVATION_SIZE], np.float32),
              random.uniform(-1.0, 1.0, [ROWS, ACTION_SIZE]).astype(np.float32),
              random.uniform(0.0, 1.0, [ROWS]).astype(np.float32),
              random.uniform(0.0, 1.0, [ROWS]) < 0.005)


def n_step_returns(experience: Rows) -> tuple[np.ndarray, np.ndarray]:
  """Returns and discounts of the first `m - N_STEP` moments: float32 [m - 5] each."""
  size = len(experience.reward) - N_STEP
  reward, discount = np.zeros(size, np.float32), np.ones(size, np.float32)
  for k in range(N_STEP):
    reward += discount * experience.reward[k:k + size]
    discount *= DISCOUNT * ~experience.terminated[k:k + size]
  return reward, discount


def batches(number: int) -> list[Batch]:
  """Batches that are the same for every contender."""
  experience, random = rows(), np.random.default_rng(3)
  reward, discount = n_step_returns(experience)
  return [batch(experience, reward, discount, random) for _ in range(number)]


def batch(experience: Rows, reward: np.ndarray, discount: np.ndarray,
          random: np.random.Generator) -> Batch:
  """A batch of uniformly drawn transitions; `reward` and `discount` are the `n_step_returns`."""
  index = random.integers(len(reward), size=BATCH_SIZE)
  return Batch(experience.observation[index], experience.action[index], reward[index],
               discount[index], experience.observation[index + N_STEP])


def with_numpy_replay(update: Callable[[Batch], float], rows: Rows) -> Callable[[], float]:
  """A function that samples and updates `STEPS_PER_CALL` times, and returns the last loss."""
  random = np.random.default_rng(0)
  reward, discount = n_step_returns(rows)

  def steps() -> float:
    for _ in range(STEPS_PER_CALL):
      loss = update(batch(rows, reward, discount, random))
    return loss

  return steps


def weights(sizes: tuple[int, ...], inputs: int, outputs: int, head_scale: float, seed: int
            ) -> list[np.ndarray]:
  """A network's initial weights: kernel [i, o] and bias [o] of each layer.

  The scale and offset of the layer norm follow those of the first layer.
  """
  random = np.random.default_rng(seed)
  result: list[np.ndarray] = []
  for number, (rows, columns) in enumerate(zip((inputs, *sizes), (*sizes, outputs), strict=True)):
    scale = head_scale if number == len(sizes) else 1.0
    kernel = random.standard_normal([rows, columns], np.float32) * np.sqrt(scale / rows)
    result += [kernel.astype(np.float32), np.zeros(columns, np.float32)]
    if not number:
      result += [np.ones(columns, np.float32), np.zeros(columns, np.float32)]
  return result


def policy_weights() -> list[np.ndarray]:
  """The policy's initial `weights`; the last layer is near zero."""
  return weights(POLICY_SIZES, OBSERVATION_SIZE, ACTION_SIZE, 1e-4, 1)


def critic_weights() -> list[np.ndarray]:
  """The critic's initial `weights`."""
  return weights(CRITIC_SIZES, OBSERVATION_SIZE + ACTION_SIZE, NUM_ATOMS, 1.0, 2)
