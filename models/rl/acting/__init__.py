"""Acting in environments, and what is logged of it."""
