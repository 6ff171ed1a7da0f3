"""Acting in environments, and evaluation."""
