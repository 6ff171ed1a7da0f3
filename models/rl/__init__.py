"""Reinforcement learning: environments, actors, replay, and networks for continuous control."""
