"""SAC for `benchmarks.agent_speed` as one plain loop in PyTorch, with a replay in NumPy.

Haarnoja et al. 2018 (arXiv:1812.05905): a policy, two critics with target networks, and a learned
temperature. One environment takes a step, then each network is updated. Nothing is compiled, and
there is no layer normalization.
"""

import math
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

_BATCH, _CAPACITY, _DISCOUNT, _TAU, _LEARNING_RATE = 256, 100_000, 0.99, 0.005, 3e-4


def loop(environment: gymnasium.Env, policy_sizes: Sequence[int], critic_sizes: Sequence[int],
         start: int) -> Callable[[int], float]:
  """Returns a function that takes steps, with an update each, and returns the critics' last loss.

  Args:
    environment: with a Box of floats for observations, and a bounded one for actions.
    policy_sizes: hidden layers of the policy.
    critic_sizes: hidden layers of each critic.
    start: random steps before the first update, taken here.
  """
  low, high = environment.action_space.low, environment.action_space.high
  observed, acted = environment.observation_space.shape[0], low.shape[0]
  policy = _mlp(observed, policy_sizes, 2 * acted)
  critics = [_mlp(observed + acted, critic_sizes, 1) for _ in range(2)]
  targets = [_mlp(observed + acted, critic_sizes, 1) for _ in range(2)]
  for target, critic in zip(targets, critics, strict=True):
    target.load_state_dict(critic.state_dict())
  both = [weight for critic in critics for weight in critic.parameters()]
  slow = [weight for target in targets for weight in target.parameters()]
  log_temperature = torch.zeros(1, requires_grad=True)
  for_critics, for_policy, for_temperature = (
      torch.optim.Adam(weights, _LEARNING_RATE)
      for weights in (both, policy.parameters(), [log_temperature]))
  replay = [np.zeros([_CAPACITY, *shape], np.float32)
            for shape in ([observed], [acted], [observed], [], [])]
  draw, written = np.random.default_rng(0), 0
  observation, _ = environment.reset(seed=0)

  def sample(observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples actions in [-1, 1] `[n, a]`; also returns their log densities `[n, 1]`."""
    mean, spread = policy(observations).chunk(2, 1)
    normal = torch.distributions.Normal(mean, spread.clamp(-5.0, 2.0).exp())
    raw = normal.rsample()
    squashed = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
    return raw.tanh(), (normal.log_prob(raw) - squashed).sum(1, keepdim=True)

  def act(action: np.ndarray) -> None:
    """Takes a step with an action in [-1, 1], and stores it."""
    nonlocal observation, written
    following, reward, terminated, truncated, _ = environment.step(
        low + 0.5 * (action + 1.0) * (high - low))
    for column, value in zip(replay, (observation, action, following, reward, terminated),
                             strict=True):
      column[written % _CAPACITY] = value
    written += 1
    observation = environment.reset()[0] if terminated or truncated else following

  def update() -> torch.Tensor:
    rows = draw.integers(min(written, _CAPACITY), size=_BATCH)
    before, action, after, reward, terminated = (torch.from_numpy(x[rows]) for x in replay)
    temperature = log_temperature.detach().exp()
    with torch.no_grad():
      next_action, density = sample(after)
      inputs = torch.cat([after, next_action], 1)
      value = torch.min(*(target(inputs) for target in targets)) - temperature * density
      goal = reward[:, None] + _DISCOUNT * (1.0 - terminated[:, None]) * value
    inputs = torch.cat([before, action], 1)
    loss = sum(F.mse_loss(critic(inputs), goal) for critic in critics)
    _step(for_critics, loss)
    action, density = sample(before)
    inputs = torch.cat([before, action], 1)
    value = torch.min(*(critic(inputs) for critic in critics))
    _step(for_policy, (temperature * density - value).mean())
    _step(for_temperature, -(log_temperature * (density.detach() - acted)).mean())
    with torch.no_grad():
      torch._foreach_lerp_(slow, both, _TAU)
    return loss

  def take(steps: int) -> float:
    for _ in range(steps):
      with torch.no_grad():
        action, _ = sample(torch.from_numpy(observation.astype(np.float32))[None])
      act(action[0].numpy())
      loss = update()
    return loss.item()

  for _ in range(start):
    act(draw.uniform(-1.0, 1.0, acted).astype(np.float32))
  return take


def _mlp(inputs: int, sizes: Sequence[int], outputs: int) -> nn.Sequential:
  layers: list[nn.Module] = []
  for size in sizes:
    layers += [nn.Linear(inputs, size), nn.ReLU()]
    inputs = size
  return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
  optimizer.zero_grad()
  loss.backward()
  optimizer.step()
