"""Compiled steps: their trainable parts, and the lines of their operations."""

from replicator.console import quiet

quiet.import_tensorflow()
