"""Reinforcement learning: environments, actors, a replay, and networks for continuous control."""
