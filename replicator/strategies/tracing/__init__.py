"""Compiled steps: their trainable parts, and the lines of their operations."""
