"""Reinforcement learning: environments, actors, a replay, and networks for continuous control."""

import replicator.moved  # noqa: F401  (says where modules went)
