"""Divergence: the numbers of a run that went wrong, and what the run does about them."""

from replicator.console import quiet

quiet.import_tensorflow()
