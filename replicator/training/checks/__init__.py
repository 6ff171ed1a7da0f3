"""Checks of a step: whether two computations of it agree, and if not, why."""
