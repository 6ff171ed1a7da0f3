"""The learner of `benchmarks.d4pg_step` in PyTorch: compiled losses, fused Adam, NumPy replay."""

from benchmarks import d4pg_problem as problem
from benchmarks.d4pg_problem import ATOMS, BATCH_SIZE, Batch

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Learner:
  """Both networks with their targets, and an update.

  Args:
    compiled: whether `torch.compile` compiles forward and backward passes.
  """

  def __init__(self, compiled: bool = True):
    policy, critic = problem.policy_weights(), problem.critic_weights()
    self.policy, self._target_policy = (_policy(policy) for _ in range(2))
    self.critic, self._target_critic = (_critic(critic) for _ in range(2))
    self._networks = (self.policy, self.critic)
    self._optimizers = [
        torch.optim.Adam(network.parameters(), problem.LEARNING_RATE, eps=problem.ADAM_EPSILON,
                         fused=True) for network in self._networks]
    self._atoms = torch.from_numpy(ATOMS)
    self._losses = torch.compile(self._both_losses) if compiled else self._both_losses
    self._updates = 0

  def update(self, batch: Batch) -> float:
    """Takes one step; returns the critic's loss."""
    critic_loss, policy_loss = self._losses(*map(torch.from_numpy, batch))
    (critic_loss + policy_loss).backward()
    for network, optimizer in zip(self._networks, self._optimizers, strict=True):
      nn.utils.clip_grad_norm_(network.parameters(), problem.CLIP_NORM)
      optimizer.step()
      optimizer.zero_grad()
    self._updates += 1
    if self._updates % problem.TARGET_PERIOD == 0:
      self._target_policy.load_state_dict(self.policy.state_dict())
      self._target_critic.load_state_dict(self.critic.state_dict())
    return critic_loss.item()

  def weights(self) -> list[np.ndarray]:
    """The weights of the policy, then of the critic, in the order of `problem.weights`."""
    return [p.detach().numpy().transpose().copy() for network in self._networks
            for p in network.parameters()]

  def _both_losses(self, observation, action, reward, discount, next_observation):
    with torch.no_grad():
      next_action = self._target_policy(next_observation)
      next_logits = self._target_critic(torch.cat([next_observation, next_action], 1))
      goal = self._project(reward, discount, next_logits.softmax(1))
    logits = self.critic(torch.cat([observation, action], 1))
    critic_loss = F.cross_entropy(logits, goal)
    # The policy's loss goes through the critic, but does not train it.
    frozen = {name: parameter.detach() for name, parameter in self.critic.named_parameters()}
    inputs = torch.cat([observation, _ClippedGradient.apply(self.policy(observation))], 1)
    logits = torch.func.functional_call(self.critic, frozen, inputs)
    return critic_loss, -(logits.softmax(1) @ self._atoms).mean()

  def _project(self, reward, discount, probabilities):
    """Projects `reward + discount * z` onto the atoms: `[n], [n], [n, 51] -> [n, 51]`."""
    atoms = self._atoms
    moved = reward[:, None] + discount[:, None] * atoms
    place = (moved.clamp(atoms[0], atoms[-1]) - atoms[0]) / (atoms[1] - atoms[0])
    lower = place.floor()
    upper_share = (place - lower) * probabilities
    index = lower.long()
    goal = torch.zeros_like(probabilities).scatter_add(1, index, probabilities - upper_share)
    return goal.scatter_add(1, (index + 1).clamp(max=len(atoms) - 1), upper_share)


class _ClippedGradient(torch.autograd.Function):
  """Clips the gradient of each example's action to norm 1, before the mean over examples."""

  @staticmethod
  def forward(context, action):
    return action.clone()

  @staticmethod
  def backward(context, gradient):
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return gradient * (1.0 / BATCH_SIZE / norm.clamp(min=1.0 / BATCH_SIZE))


def _layer_norm_mlp(inputs: int, sizes: tuple[int, ...]) -> list[nn.Module]:
  first, *further = sizes
  layers = [nn.Linear(inputs, first), nn.LayerNorm(first, eps=problem.LAYER_NORM_EPSILON),
            nn.Tanh()]
  for before, size in zip(sizes, further, strict=False):
    layers += [nn.Linear(before, size), nn.ELU()]
  return layers


def _policy(weights: list[np.ndarray]) -> nn.Sequential:
  sizes = problem.POLICY_SIZES
  return _with_weights(weights, nn.Sequential(
      *_layer_norm_mlp(problem.OBSERVATION_SIZE, sizes),
      nn.Linear(sizes[-1], problem.ACTION_SIZE), nn.Tanh()))


def _critic(weights: list[np.ndarray]) -> nn.Sequential:
  sizes = problem.CRITIC_SIZES
  return _with_weights(weights, nn.Sequential(
      *_layer_norm_mlp(problem.OBSERVATION_SIZE + problem.ACTION_SIZE, sizes),
      nn.Linear(sizes[-1], problem.NUM_ATOMS)))


def _with_weights(weights: list[np.ndarray], network: nn.Sequential) -> nn.Sequential:
  with torch.no_grad():
    for parameter, value in zip(network.parameters(), weights, strict=True):
      parameter.copy_(torch.from_numpy(value.transpose()))
  return network
