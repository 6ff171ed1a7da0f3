"""Environments: creation, wrappers, rendering, and processes."""
