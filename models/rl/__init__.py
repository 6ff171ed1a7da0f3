"""Reinforcement learning: environments, actors, a replay, rollouts, and networks of agents."""

import replicator.moved  # noqa: F401  (says where modules went)
