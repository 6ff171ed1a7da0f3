"""The replay buffer, sequences, rollouts, priorities and hindsight."""
