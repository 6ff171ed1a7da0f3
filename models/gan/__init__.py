"""Generative adversarial networks with encoders."""

import replicator.moved  # noqa: F401  (says where modules went)
