"""Bit flipping: bits are flipped one at a time until they equal a goal, with sparse rewards."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary


class BitFlipping(gymnasium.Env):
  """The example of Andrychowicz et al. 2017 (arXiv:1707.01495), section 3.1.

  Each action flips one bit. The reward is -1 until the bits equal the goal; then it is 0, and the
  episode terminates. Episodes are truncated after as many steps as there are bits. A random policy
  reaches a goal of 16 bits in about one of 4,000 episodes.

  Args:
    bits: number of bits.
  """

  def __init__(self, bits: int = 16):
    self._bits = bits
    self.action_space = Discrete(bits)
    self.observation_space = Dict({
        name: MultiBinary(bits) for name in ("observation", "achieved_goal", "desired_goal")})

  def reset(self, *, seed: int | None = None, options: dict | None = None
            ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Draws bits and a different goal."""
    super().reset(seed=seed)
    self._steps = 0
    self._state, self._goal = self.np_random.integers(0, 2, [2, self._bits], np.int8)
    if self._is_solved():
      self._goal[0] ^= 1
    return self._seen(), {}

  def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
    """Flips a bit; `info["is_success"]` says whether the goal is reached."""
    self._state[action] ^= 1
    self._steps += 1
    is_solved = self._is_solved()
    return (self._seen(), float(is_solved) - 1.0, is_solved, self._steps >= self._bits,
            {"is_success": is_solved})

  def _is_solved(self) -> bool:
    return bool((self._state == self._goal).all())

  def _seen(self) -> dict[str, np.ndarray]:
    return {"observation": self._state.copy(), "achieved_goal": self._state.copy(),
            "desired_goal": self._goal.copy()}


gymnasium.register("BitFlipping-v0", f"{__name__}:BitFlipping")
