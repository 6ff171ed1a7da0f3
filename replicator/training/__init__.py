"""The training loop around a step: log points, evaluations, checkpoints."""
