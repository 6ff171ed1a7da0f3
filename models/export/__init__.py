"""Trained networks as files that load without this project: SavedModel and ONNX."""

import replicator.moved  # noqa: F401  (says where modules went)
