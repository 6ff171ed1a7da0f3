"""Optimizers of an agent's networks, which also keep target networks."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import replicator
from replicator import UsageError
from replicator.errors import above_zero, at_least_one, from_0_to_1

import gin
import keras


def wrap_optimizers(agent: str, make: Callable[[], keras.optimizers.Optimizer],
                    targets: Sequence[str], tau: float, target_update_period: int = 1,
                    policy_delay: int | None = None,
                    **networks: keras.Model | keras.Variable | Sequence
                    ) -> dict[str, replicator.Optimizer]:
  """Makes an optimizer for each network, in the gin scope of its name.

  Target networks are averages that an optimizer keeps; networks use them under
  `optimizer.averaged_weights()`. Once per `target_update_period` updates of its network,

      target = tau network + (1 - tau) target,

  so a tau of 1 copies the network.

  Args:
    agent: name of the agent in gin files, for error messages.
    make: makes a Keras optimizer.
    targets: the names of the networks that have target networks.
    tau: see above; above 0, and at most 1.
    target_update_period: see above.
    policy_delay: steps between updates of the network `policy` and of all target networks; None for
      an agent without this setting, which updates at each step.
    networks: what each optimizer owns, see `replicator.wrap_optimizers`.

  Returns:
    The optimizers by the names of their networks.

  Raises:
    UsageError: a setting is invalid, or gin binds a parameter of `wrap_optimizer` instead of these.
  """
  above_zero(agent, tau=tau)
  from_0_to_1(agent, tau=tau)
  at_least_one(agent, target_update_period=target_update_period, policy_delay=policy_delay)
  delay = policy_delay or 1
  options: dict[str, dict[str, Any]] = {name: {
      "ema_decay": 1.0 - tau,
      "ema_every": target_update_period * (1 if name == "policy" else delay)} for name in targets}
  if policy_delay is not None:
    options.setdefault("policy", {})["every"] = policy_delay
  for name in networks:
    _check_bindings(agent, name, policy_delay is not None)
  return replicator.wrap_optimizers(make, options, **networks)


def _check_bindings(agent: str, network: str, delays: bool) -> None:
  """Raises a UsageError for a binding of `wrap_optimizer` that is a setting of the agent."""
  with gin.config_scope(network):
    bound = gin.get_bindings("replicator.wrap_optimizer", resolve_references=False)
  # The recorded configuration of a run also binds the defaults.
  defaults = inspect.signature(replicator.wrap_optimizer).parameters
  places = {"ema_decay": "tau", "ema_every": "target_update_period", "ema_start": "tau"}
  if delays:
    places.update(ema_every="policy_delay", every="policy_delay")
  for name, place in places.items():
    if name in bound and bound[name] != defaults[name].default:
      raise UsageError(f"wrap_optimizer.{name} = {bound[name]}: an agent has its own settings for "
                       f"target networks and delays; set {agent}.{place} instead")
