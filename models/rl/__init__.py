"""Reinforcement learning: environments, actors, a replay, rollouts, and networks of agents."""
