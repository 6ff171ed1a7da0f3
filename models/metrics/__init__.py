"""Metrics of generated images, and the networks whose features they compare."""

import replicator.moved  # noqa: F401  (says where modules went)
